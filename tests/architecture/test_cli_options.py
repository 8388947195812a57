"""The command line is a promise: a new or changed option is a decision, accepted with `make snapshots`."""

import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

import outlay
from outlay.cli.main import app

ONLY_OPTIONS = {"run": {"--json", "--plan"}, "choose": {"--json", "--html", "--output", "--force", "--all"}}
"""What becomes of a result, which in Python is a method of it. What the recipe takes itself are `options` in Python."""
OF_SEVERAL = {"layouts": "layout", "meshes": "mesh"}
"""An option is given several times where Python has a sequence."""
SNAPSHOT = Path(__file__).with_name("cli_options.txt")


def described() -> str:
    """One line for every argument and option of every command: its names, and its default if it has one."""
    return described_by(typer.main.get_command(app), "outlay")


def described_by(command, name: str) -> str:
    """One line for every argument and option of a command and of those below it; installed applications have theirs."""
    return "".join(f"{line}\n" for line in _lines(command, name))


def _lines(command, name: str) -> Iterator[str]:
    for parameter in command.params:
        names = "/".join([*parameter.opts, *parameter.secondary_opts])
        many = "..." if parameter.multiple or parameter.nargs != 1 else ""
        default = " (required)" if parameter.required else f" = {parameter.default!r}"
        yield f"{name} {names}{many}{default}"
    for subcommand in getattr(command, "commands", {}).values():
        yield from _lines(subcommand, f"{name} {subcommand.name}")


def test_the_options_of_every_command_are_those_of_the_snapshot():
    assert described() == SNAPSHOT.read_text(), "the command line changed: if that is intended, run `make snapshots`"


@pytest.mark.parametrize("command", sorted(ONLY_OPTIONS))
def test_python_and_the_command_line_have_the_same_words(command):
    """An option may have a shorter name as well, behind the one that Python has."""
    lines = [line for line in described().splitlines() if line.startswith(f"outlay {command} --")]
    options = {line.split()[2].removesuffix("...").partition("/")[0] for line in lines}
    parameters = inspect.signature(getattr(outlay, command)).parameters.values()
    keywords = {each.name for each in parameters if each.kind is each.KEYWORD_ONLY} - {"options"}
    assert len(keywords) > 5
    assert {f"--{OF_SEVERAL.get(name, name).replace('_', '-')}" for name in keywords} == options - ONLY_OPTIONS[command]


if __name__ == "__main__":
    SNAPSHOT.write_text(described())
    print(f"wrote {SNAPSHOT.name}: {len(described().splitlines())} arguments and options")
