"""`outlay completion`: what completes commands, options and their values in bash, zsh and fish."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from outlay.cli.output import say
from outlay.recipes.find import LAYOUTS, file_endings, layouts_of, recipes

_SCRIPTS = {
    # Bash breaks words at colons and equals signs, as in h100:1x8: what stands before them is taken off again.
    "bash": """\
# Write this into ~/.bashrc:  eval "$(outlay completion bash)"
_outlay_complete() {
  local IFS=$'\\n' line="${COMP_LINE:0:COMP_POINT}" before="" word
  word="${line##* }"
  case "$word" in *[:=]*) before="${word%"${word##*[:=]}"}" ;; esac
  COMPREPLY=()
  while read -r word; do COMPREPLY+=("${word#"$before"}"); done < <(outlay completion --line "$line" 2>/dev/null)
  case "${COMPREPLY[*]}" in */|*:) compopt -o nospace ;; esac
}
complete -F _outlay_complete outlay
""",
    "zsh": """\
# Write this into ~/.zshrc, below compinit:  eval "$(outlay completion zsh)"
_outlay() {
  local -a lines
  lines=("${(@f)$(outlay completion --line "${BUFFER[1,$CURSOR]}" 2>/dev/null)}")
  [[ -n "$lines" ]] && compadd -Q -S '' -a lines
}
compdef _outlay outlay
""",
    "fish": """\
# Write this into ~/.config/fish/completions/outlay.fish
complete -c outlay -f -a '(outlay completion --line (commandline -cp | string collect) 2>/dev/null)'
""",
}


def completion(
    context: typer.Context,
    shell: Annotated[str | None, typer.Argument(metavar="bash|zsh|fish", help="The shell to print it for.")] = None,
    line: Annotated[str | None, typer.Option("--line", hidden=True, help="What was typed so far.")] = None,
) -> None:
    """Print what makes a shell complete commands, recipes, layouts, targets and run folders."""
    if line is not None:
        for word in completions(context.find_root().command, line):
            say(word)
        return
    if shell not in _SCRIPTS:
        from outlay.core.suggest import did_you_mean

        raise typer.BadParameter(f"{shell or 'no shell'}: {did_you_mean(shell or '', _SCRIPTS)}", param_hint="SHELL")
    say(_SCRIPTS[shell].rstrip("\n"))


def completions(outlay: Any, line: str) -> list[str]:
    """Return what the last word of a command line can become.

    Args:
        outlay: the command `outlay`, with its commands.
        line: the command line up to the cursor.
    """
    *words, typed = _words(line)
    command, rest = outlay, words[1:]
    while rest and hasattr(command, "commands") and (inner := command.get_command(None, rest[0])):
        command, rest = inner, rest[1:]
    if "--" in rest:
        return []
    return sorted({word for word in _candidates(command, rest, typed) if word.startswith(typed)})


def _words(line: str) -> list[str]:
    """Split a line that may end inside a word, or inside quotes; the last word is what is being typed."""
    for ending in ("", "'", '"'):
        try:
            words = shlex.split(line + ending)
        except ValueError:
            continue
        return [*words, ""] if not words or line.endswith(" ") else words
    return [""]


def _candidates(command: Any, rest: Sequence[str], typed: str) -> Iterator[str]:
    options = {name: each for each in command.params for name in getattr(each, "opts", ()) if name.startswith("-")}
    if typed.startswith("-"):
        for each in command.params:
            if not getattr(each, "hidden", False):
                yield from (name for name in (*each.opts, *each.secondary_opts) if name.startswith("--"))
        return
    last = options.get(rest[-1]) if rest else None
    if last is not None and not getattr(last, "is_flag", False):
        yield from _values(last.opts, str(last.metavar or ""), rest, typed)
        return
    if hasattr(command, "commands"):
        yield from (name for name in command.list_commands(None) if not command.get_command(None, name).hidden)
    for argument in command.params:
        if argument.param_type_name == "argument":
            yield from _values((), str(argument.metavar or ""), rest, typed)


def _values(names: Iterable[str], metavar: str, rest: Sequence[str], typed: str) -> Iterator[str]:
    """Yield what an option or an argument can be, by its names and by what the help calls it."""
    yield from (word for word in metavar.split("|") if word.islower() and word.isascii())
    if metavar == "RECIPE":
        yield from recipes()
        yield from _paths(typed, (".py", *file_endings()))
    if "--layout" in names or metavar in ("A", "B"):
        yield from _layouts(rest)
        yield from _paths(typed, (".toml", ".json"))
    if "--target" in names:
        from outlay.devices.hardware import known_hardware
        from outlay.devices.target import example_of

        yield from map(example_of, known_hardware().values())
    if "DIR" in metavar:
        yield from _folders(typed)
    if "FILE" in metavar and "--layout" not in names:
        yield from _paths(typed, ())


def _layouts(rest: Sequence[str]) -> list[str]:
    """Return the layouts of the recipe in the command; for a user's own recipe, the common ones."""
    known = next((layouts for word in rest if (layouts := layouts_of(word))), LAYOUTS["digits"])
    return [*known]


def _folders(typed: str) -> list[str]:
    """Return folders, run folders first."""
    from outlay.core.own_folder import MARK

    runs = [str(path.parent) for path in Path("runs").glob(f"*/{MARK}")]
    return [*runs, *(path for path in _paths(typed, ()) if path.endswith("/"))]


def _paths(typed: str, endings: Sequence[str]) -> list[str]:
    """Return the folders and the files with these endings that begin like what was typed."""
    folder, _, begin = typed.rpartition("/")
    try:
        entries = list(Path(folder or ("/" if typed.startswith("/") else ".")).iterdir())
    except OSError:
        return []
    there = [path for path in entries if path.name.startswith(begin) and (begin or not path.name.startswith("."))]
    prefix = f"{folder}/" if "/" in typed else ""
    return [
        f"{prefix}{path.name}{'/' if path.is_dir() else ''}"
        for path in there
        if path.is_dir() or not endings or path.suffix in endings
    ]
