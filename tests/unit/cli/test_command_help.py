"""The help of `outlay`: groups, whole sentences, two examples for each command, fixes in its own words."""

import pytest
import typer
from tests.unit.cli.command import LINE, command_here

from outlay.cli.command_help import EXAMPLES, GROUPS, first_sentence
from outlay.cli.main import app

COMMANDS = typer.main.get_command(app).commands


def test_the_help_lists_every_command_in_a_group_with_a_whole_sentence(tmp_path):
    text = command_here("--help", cwd=tmp_path).stdout
    words = " ".join(text.split())
    assert [line.rstrip(":") for line in text.splitlines() if line.rstrip(":") in GROUPS] == list(GROUPS)
    for name, command in COMMANDS.items():
        assert f"{name} {first_sentence(command)}" in words
    assert "..." not in text.partition("See:")[2]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_ends_with_examples_that_it_understands(name, tmp_path):
    text = command_here(name, "--help", cwd=tmp_path).stdout
    if name not in EXAMPLES:
        assert getattr(COMMANDS[name], "commands", None), "a command that is no group has two examples"
        return
    for line in EXAMPLES[name]:
        assert line in text
        options = {word for word in line.partition(" -- ")[0].split() if word.startswith("--")}
        assert all(option in text for option in options), f"{line} has an option that its help does not list"


def test_colour_is_for_terminals_and_no_color_keeps_it_away(tmp_path, monkeypatch):
    assert "\x1b[" not in command_here("--help", cwd=tmp_path).stdout
    from outlay.cli.command_help import styled

    assert styled("See", bold=True).startswith("\x1b[1m")
    monkeypatch.setenv("NO_COLOR", "1")
    assert styled("See", bold=True) == "See"


def test_a_fix_names_options_where_python_names_arguments(tmp_path):
    output = command_here("show", LINE, "--mesh", "data=5", cwd=tmp_path)
    assert output.exit_code == 2
    assert "fix: " in output.stderr
    assert "--mesh data=-1" in output.stderr
    assert "outlay.mesh(" not in output.stderr
    more = command_here("show", LINE, "--mesh", "data=16", cwd=tmp_path)
    assert "fix: try it on 16 simulated devices: --devices 16" in more.stderr
