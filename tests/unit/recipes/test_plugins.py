"""Any installed package plugs recipes, files and commands in, and what is not installed says what to install."""

import sys

import pytest
from tests.unit.cli.command import command_here

import outlay
from outlay.cli.main import app
from outlay.core import entry_points as module
from outlay.recipes import find
from outlay.recipes.find import find_function

PACKAGE = """
import typer

sayings = typer.Typer(name="sayings")


@sayings.callback()
def group():
    "Sayings of a plugged-in package."


@sayings.command()
def one():
    "Print one."
    print("a saying")


class SayingError(Exception):
    pass


def recipe():
    return "the recipe"


def of_file(path):
    return lambda: path.name


LAYOUTS = ("calm", "loud")
"""
ENTRIES = """
[console_scripts]
sayings = sayings_of_a_test:main
[outlay.recipes]
sayings = sayings_of_a_test:recipe
[outlay.layouts]
sayings = sayings_of_a_test:LAYOUTS
[outlay.files]
.saying = sayings_of_a_test:of_file

[outlay.commands]
sayings = sayings_of_a_test:sayings
[outlay.errors]
SayingError = sayings_of_a_test:SayingError
"""


def forget():
    for known in (module.entry_points, module._files):
        known.cache_clear()


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """An installed package beside Outlay."""
    (tmp_path / "sayings_of_a_test.py").write_text(PACKAGE)
    info = tmp_path / "sayings_of_a_test-1.0.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.syspath_prepend(tmp_path)
    forget()
    yield
    forget()
    sys.modules.pop("sayings_of_a_test", None)
    app_commands().pop("sayings", None)


def app_commands():
    import typer

    return typer.main.get_command(app).commands


@pytest.fixture
def alone(monkeypatch):
    """No package is installed that plugs anything in."""
    monkeypatch.setattr(find, "entry_points", lambda group: {})


def test_a_package_plugs_in_recipes_files_layouts_commands_and_errors(installed, tmp_path):
    assert find_function("sayings")() == "the recipe"
    assert find_function("a/b.saying")() == "b.saying"
    assert find.layouts_of("sayings") == ("calm", "loud")
    assert outlay.errors.SayingError.__name__ == "SayingError"
    assert "SayingError" in dir(outlay.errors)
    assert command_here("sayings", "one", cwd=tmp_path).output == "a saying\n"
    assert "Sayings of a plugged-in package." in command_here("--help", cwd=tmp_path).output
    assert command_here("completion", "--line", "outlay run sayi", cwd=tmp_path).output.splitlines()[0] == "sayings"
    assert command_here("completion", "--line", "outlay sayings o", cwd=tmp_path).output == "one\n"


def test_a_recipe_of_outlays_own_is_not_replaced(installed, monkeypatch):
    monkeypatch.setattr(find, "entry_points", lambda group: pytest.fail("entry points were read"))
    assert find.recipe_named("digits") == find.RECIPES["digits"]
    assert find.layouts_of("digits") == find.LAYOUTS["digits"]
    assert find.ending_of("digits") is None
    assert find_function("digits").__name__ == "digits"


@pytest.mark.parametrize("what", ["ab_brain", "model.scfg", "model.toml"])
def test_a_recipe_that_is_not_installed_says_what_to_install(what, alone):
    with pytest.raises(outlay.errors.RecipeError, match=r"fix: pip install 'outlay\[brain\]'"):
        find_function(what)


def test_a_command_that_is_not_installed_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr("outlay.cli.main.commands", dict)
    answer = command_here("brain", "show", "model.toml", cwd=tmp_path)
    assert answer.exit_code == 2
    assert "fix: pip install 'outlay[brain]'" in answer.output


def test_a_file_that_imports_what_is_not_installed_says_what_to_install():
    from outlay.cli.failures import failure_of

    failure = failure_of(ModuleNotFoundError("none", name="outlay.brain"))
    assert "this needs outlay.brain, which is not installed\n  fix: pip install 'outlay[brain]'" in failure.message


def test_the_entry_points_read_are_those_that_python_reads():
    from importlib.metadata import entry_points

    for group in (*module.GROUPS, "console_scripts"):
        names = {entry.name: entry.value for entry in entry_points(group=group) if entry.value.startswith("outlay")}
        read = module.entry_points(group)
        assert {name: reference for name, reference in read.items() if reference.startswith("outlay")} == names
