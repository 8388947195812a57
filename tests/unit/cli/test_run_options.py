"""An option of a run is declared once, and comes through the command and through Python into the run."""

import dataclasses
import inspect
import json
from dataclasses import dataclass
from typing import Annotated, ClassVar

import pytest
import typer
from tests.unit.recipes import small
from typer.testing import CliRunner

import outlay
from outlay.cli.options import RECIPE_OPTIONS, with_options
from outlay.cli.run_command import run
from outlay.core.option import takes_fields_of
from outlay.recipes.prepare import prepare
from outlay.recipes.program_options import ProgramOptions
from outlay.recipes.recipe import Recipe
from outlay.recipes.recipe_run import run_of
from outlay.recipes.training_run import TrainingRun
from outlay.train.run_folder import RunFolder
from outlay.train.run_options import RunOption, RunOptions

pytestmark = pytest.mark.usefixtures("blank_pictures")


@dataclass(frozen=True, kw_only=True)
class SlowOptions(RunOptions):
    """The options of a kind of run that waits between two steps: one more, which is declared here and nowhere else."""

    pause: Annotated[
        int | None,
        RunOption("Wait N ms between two steps.", "N", unit="milliseconds", minimum=1, is_continued=True),
    ] = None


class SlowRun(TrainingRun):
    """A kind of run with an option of its own."""

    seen: ClassVar[list[int]] = []

    def take_steps(self):
        """Note what reached the run, and train."""
        assert isinstance(self.options, SlowOptions)
        self.seen.append(self.options.pause)
        return super().take_steps()


class SlowRecipe(Recipe):
    """A recipe that names this kind of run."""

    runner = "tests.unit.cli.test_run_options:SlowRun"  # the command loads this file once more, by its path


def slow() -> SlowRecipe:
    line = small.line()
    return SlowRecipe(**{field.name: getattr(line, field.name) for field in dataclasses.fields(line)})


def command(arguments: list[str]):
    """Run the command, made from the class that declares one option more."""
    app = typer.Typer(rich_markup_mode=None)
    extended = with_options(program=ProgramOptions, options=SlowOptions, before={"plan": "watch"})(inspect.unwrap(run))
    app.command(context_settings=RECIPE_OPTIONS)(extended)
    return CliRunner().invoke(app, arguments)


def test_a_new_option_is_one_field_for_the_help_the_command_the_run_its_config_and_who_continues_it(tmp_path):
    SlowRun.seen.clear()
    assert "Wait N ms between two steps." in command(["--help"]).output
    arguments = [f"{__file__}:slow", "--steps", "2", "--checkpoint-every", "2", "--run-folder", str(tmp_path / "run")]
    done = command([*arguments, "--pause", "3"])
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "run" / "config.json").read_text())["pause"] == 3
    run_of(prepare(slow()), SlowOptions(steps=3)).run(RunFolder(tmp_path / "run", resume=True))
    assert SlowRun.seen == [3, 3], "and the run that continues it"


def test_the_command_refuses_a_value_of_it_that_is_too_small():
    assert command(["digits", "--pause", "0"]).exit_code == 2


def test_python_has_it_as_a_keyword_with_its_help_and_refuses_others():
    @takes_fields_of(SlowOptions, "wait(pause=3)", delay="pause=")
    def wait(options):
        """Wait.

        Args:
            nothing: but these.

        Returns:
            The pause.
        """
        return options.pause

    assert wait(pause=3) == 3
    assert inspect.signature(wait).parameters["pause"].annotation == int | None
    assert "        pause: Wait N ms between two steps. In milliseconds.\n" in wait.__doc__
    assert wait.__doc__.index("start_within:") < wait.__doc__.index("Returns:")
    with pytest.raises(TypeError, match=r"wait\(\) has no parameter 'delay'\n  fix: pause="):
        wait(delay=3)


def test_a_check_of_the_value_itself_is_not_taken_for_a_wrong_call():
    @dataclass(frozen=True)
    class Checked:
        number: int

        def __post_init__(self):
            raise TypeError("numbers are even")

    @takes_fields_of(Checked, "even(number=2)")
    def even(checked):
        """Return it."""

    with pytest.raises(TypeError, match=r"^numbers are even$"):
        even(3)


@pytest.mark.parametrize("name", ["steps", "patience", "mesh", "stuck_after"])
def test_the_help_of_outlay_run_is_that_of_the_command(name):
    from outlay.core.option import options_in
    from outlay.recipes.run import RunArguments

    declared = options_in(RunArguments)[name]
    assert f"        {name}: {declared.option.help}" in (outlay.run.__doc__ or "")
    assert declared.option.help[:40] in " ".join(CliRunner().invoke(_app(), ["--help"]).output.split())


def _app() -> typer.Typer:
    app = typer.Typer(rich_markup_mode=None)
    app.command(context_settings=RECIPE_OPTIONS)(run)
    return app
