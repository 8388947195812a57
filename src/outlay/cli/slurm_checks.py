"""What a batch script names is looked for before it is written: a job would find out when its turn has come."""

from __future__ import annotations

import os
import re
import shutil
import symtable
from collections.abc import Iterator, Sequence
from pathlib import Path

from outlay.core.error_types import LaunchError
from outlay.core.suggest import did_you_mean
from outlay.recipes.find import FILE_WORDS, ending_of, layouts_of, recipe_named, recipes
from outlay.slurm.slurm_script import python_file


def check_names(recipe: str | None, words: Sequence[str], program: tuple[str, ...], *, has_modules: bool) -> None:
    """Raise LaunchError for a recipe, layout, file or program that is not there; all are listed.

    Args:
        recipe: what the job runs; None for a program.
        words: the options of the recipe.
        program: the words of a program of one's own.
        has_modules: whether the job loads modules, which may bring the program.
    """
    problems = [*(_of_program(program, has_modules) if recipe is None else _of_recipe(recipe, words))]
    if problems:
        raise LaunchError("\n  ".join(["this job would fail when its turn comes:", *problems, _ELSEWHERE]))


_ELSEWHERE = "(--no-check if it is only on the cluster)"


def _of_program(words: tuple[str, ...], has_modules: bool) -> Iterator[str]:
    name, file = words[0], python_file(words)
    if "/" in name and not os.access(name, os.X_OK):
        yield f"{name} is no file that can be executed\n    fix: chmod +x {name}, or: python {name}"
    elif name.endswith(".py") and "/" not in name and Path(name).is_file():
        yield f"{name} is a file, not a command\n    fix: -- python {name}"
    elif "/" not in name and not has_modules and shutil.which(name) is None:
        yield f"there is no program {name} on PATH\n    fix: correct it, or load it with --module"
    if file is not None and not Path(file).is_file():
        yield _no_file(file)
    if Path(name).name == "outlay" and words[1:2] == ("run",) and len(words) > 2:
        yield from _of_recipe(words[2], words[3:])


def _of_recipe(recipe: str, words: Sequence[str]) -> Iterator[str]:
    if ".py" in recipe:
        yield from _of_function(*recipe.rpartition(":")[::2] if not recipe.endswith(".py") else (recipe, ""))
    elif ending_of(recipe):
        if not Path(recipe).is_file():
            yield _no_file(recipe)
    elif not recipe_named(recipe):
        fix = f"a recipe by name, path/to/file.py:function, or {FILE_WORDS}; a program comes after two dashes"
        yield f"there is no recipe {recipe!r}: {did_you_mean(recipe, recipes())}\n    fix: {fix}"
    if layout := _layout(words):
        if layout.endswith(".toml"):
            yield from _of_layout_file(layout)
        elif (known := layouts_of(recipe)) and layout.removesuffix("+host") not in known:
            yield f"{recipe} has no layout {layout!r}: {did_you_mean(layout, known)}"


def _layout(words: Sequence[str]) -> str | None:
    """Return the value of `--layout`; as for a command, the last one counts."""
    values = [
        word.partition("=")[2] if "=" in word else "".join(words[number + 1 : number + 2])
        for number, word in enumerate(words)
        if word.partition("=")[0] == "--layout"
    ]
    return values[-1] if values else None


def _of_layout_file(file: str) -> Iterator[str]:
    if not Path(file).is_file():
        yield _no_file(file)
        return
    from outlay.core.toml import parse_toml, read_toml_text

    parse_toml(read_toml_text(file, "the layout file", LaunchError), file, LaunchError, "correct the line")


def _of_function(file: str, name: str) -> Iterator[str]:
    """Yield what is wrong with `file.py:function`; the file is parsed, not executed."""
    if not Path(file).is_file():
        yield _no_file(file)
        return
    text = Path(file).read_text(encoding="utf-8", errors="replace")
    try:
        table = symtable.symtable(text, file, "exec")
    except (SyntaxError, ValueError) as error:
        yield f"{file}:{getattr(error, 'lineno', 1)}: {error}"
        return
    functions = [each.get_name() for each in table.get_children() if each.get_type() == "function"]
    if not name:
        known = ", ".join(f"{file}:{each}" for each in functions) or "it has no functions"
        yield f"{file} is a file; which of its functions makes the recipe?\n    fix: {known}; or -- python {file}"
    elif not _is_bound(table, name) and not re.search(r"^from \S+ import \*", text, re.MULTILINE):
        yield f"{file} has no function {name!r}: {did_you_mean(name, functions)}"


def _is_bound(table: symtable.SymbolTable, name: str) -> bool:
    if name not in table.get_identifiers():
        return False
    symbol = table.lookup(name)
    return symbol.is_assigned() or symbol.is_imported()


def _no_file(file: str) -> str:
    folder, ending = Path(file).parent, Path(file).suffix
    nearby = sorted(entry.name for entry in folder.glob(f"*{ending}")) if folder.is_dir() else []
    return f"there is no file {file}" + (f"; {folder.resolve()} holds {', '.join(nearby[:8])}" if nearby else "")
