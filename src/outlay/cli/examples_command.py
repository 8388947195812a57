"""`outlay examples`: list the programs that come with Outlay, and copy them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outlay.cli.options import command_group
from outlay.cli.output import say

examples = command_group(
    "examples",
    help="List the programs that come with Outlay, and copy them.",
    epilog="\b\nExamples:\n  outlay examples list\n  outlay examples copy equinox_mlp.py",
)


def _folder() -> Path:
    """Return the folder of the examples: in the installed package, or beside the sources."""
    package = Path(__file__).parents[1]
    installed = package / "examples" / "programs"
    return installed if installed.is_dir() else package.parents[1] / "examples"


def _files() -> dict[str, Path]:
    return {path.name: path for path in sorted(_folder().glob("*")) if path.suffix in (".py", ".toml")}


@examples.command("list")
def list_examples() -> None:
    """List the examples, each with what it shows."""
    files = _files()
    width = max(map(len, files), default=0)
    for name, path in files.items():
        say(f"{name:<{width}}  {_what(path)}")
    say("outlay examples copy NAME copies one here", err=True)


@examples.command("copy")
def copy_examples(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME...]", help="Which; by default all.")] = None,
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="Where to.")] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Also replace files that are there.")] = False,
) -> None:
    """Copy examples into a folder, by default the working folder."""
    from outlay.core.error_types import RecipeError
    from outlay.core.output_file import check_writable, write_output
    from outlay.core.suggest import did_you_mean

    files = _files()
    known = {**files, **{path.stem: path for path in files.values()}}
    if unknown := [name for name in names or () if name not in known]:
        fix = did_you_mean(unknown[0], files)
        raise RecipeError(f"there is no example {', '.join(map(repr, unknown))}: {fix}\n  fix: outlay examples list")
    chosen = [known[name] for name in names] if names else [*files.values()]
    to.mkdir(parents=True, exist_ok=True)
    for path in chosen:  # all of them first: none is copied if one cannot be
        check_writable(to / path.name, force=force)
    for path in chosen:
        write_output(to / path.name, path.read_bytes(), force=force)
        say(f"wrote {to / path.name}", err=True)


def _what(path: Path) -> str:
    """Return the first sentence of a file: of its docstring, or of its first comment."""
    first = path.read_text(encoding="utf-8").lstrip('"# ').split("\n\n")[0].partition('"""')[0]
    return " ".join(first.split()).replace(" # ", " ").partition(". ")[0].rstrip(".")
