"""The command line is a promise: a new or changed option is a decision, accepted with `make snapshots`."""

import inspect
from collections.abc import Iterator
from pathlib import Path

import typer

import outlay
from outlay.cli.main import app

SNAPSHOT = Path(__file__).with_name("cli_options.txt")


def described() -> str:
    """One line for every argument and option of every command: its names, and its default if it has one."""
    return "".join(f"{line}\n" for line in _lines(typer.main.get_command(app), "outlay"))


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


def test_what_python_calls_a_choice_of_a_run_the_command_line_does_too():
    options = {
        line.split()[2].removesuffix("...") for line in described().splitlines() if line.startswith("outlay run --")
    }
    keywords = [
        each.name for each in inspect.signature(outlay.run).parameters.values() if each.kind is each.KEYWORD_ONLY
    ]
    assert "run_folder" in keywords
    assert not [name for name in keywords if f"--{name.replace('_', '-')}" not in options]


if __name__ == "__main__":
    SNAPSHOT.write_text(described())
    print(f"wrote {SNAPSHOT.name}: {len(described().splitlines())} arguments and options")
