import sys

import pytest

from outlay.core.error_types import RecipeError
from outlay.recipes.find import find_recipe

GOOD = """
from tests.unit.recipes import small

def recipe():
    return small.line()

def wide(width):
    return small.line()

def broken():
    return undefined_name

def wrong():
    return {"name": "line"}

made = small.line()
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "mine", raising=False)  # of a command that another test has run in this process
    path = tmp_path / "mine.py"
    path.write_text(GOOD)
    yield path
    # Only these: another `sys.modules` would break what is imported for the first time in between.
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def test_ours_by_name():
    assert find_recipe("digits").name == "digits"


def test_an_unknown_name_lists_ours_and_the_other_way():
    with pytest.raises(
        RecipeError, match=r"no recipe 'digit': did you mean 'digits'\?\n  fix: .*path/to/file.py:function"
    ):
        find_recipe("digit")


def test_a_users_function(file):
    assert find_recipe(f"{file}:recipe").name == "line"


def test_neighbouring_files_can_be_imported(file):
    (file.parent / "neighbour_of_mine.py").write_text("from tests.unit.recipes.small import line")
    file.write_text("import neighbour_of_mine\ndef recipe():\n    return neighbour_of_mine.line()\n")
    assert find_recipe(f"{file}:recipe").name == "line"


def test_a_missing_file_names_those_nearby(file):
    with pytest.raises(RecipeError, match=r"there is no file .*mime.py; .* holds mine.py"):
        find_recipe(f"{file.parent}/mime.py:recipe")


def test_links_in_a_circle_are_no_file(tmp_path):
    (tmp_path / "mine.py").symlink_to("mine.py")
    with pytest.raises(RecipeError, match=r"is not a file: .*Too many levels of symbolic links"):
        find_recipe(f"{tmp_path}/mine.py:recipe")


def test_a_file_without_a_function_lists_its_functions(file):
    with pytest.raises(
        RecipeError, match=r"which of its functions .*\n  fix: .*mine.py:broken, .*mine.py:recipe, .*mine.py:wide"
    ):
        find_recipe(str(file))


def test_a_missing_function(file):
    with pytest.raises(RecipeError, match=r"mine.py has no function 'recipes': did you mean 'recipe'"):
        find_recipe(f"{file}:recipes")


def test_a_function_that_is_no_recipe(file):
    with pytest.raises(
        RecipeError, match=r"mine.py:wrong\(\) returned a dict, not a Recipe\n  fix: return outlay.Recipe"
    ):
        find_recipe(f"{file}:wrong")


def test_a_recipe_that_is_no_function(file):
    with pytest.raises(
        RecipeError, match=r"'made' in .*mine.py is a Recipe, not a function\n  fix: def made\(\): return"
    ):
        find_recipe(f"{file}:made")


def test_a_function_that_needs_arguments(file):
    with pytest.raises(
        RecipeError, match=r"mine.py:wide takes width, .*\n  fix: --width VALUE, or a default: def wide\(width=...\)"
    ):
        find_recipe(f"{file}:wide")


def test_a_function_that_needs_arguments_takes_them_from_the_command_line(file):
    assert find_recipe(f"{file}:wide", ["--width", "3"]).name == "line"


def test_a_function_that_fails_shows_its_line(file):
    with pytest.raises(
        RecipeError, match=r"(?s)mine.py:broken\(\) raised an error\n.*mine.py:11: return undefined_name\n  NameError"
    ):
        find_recipe(f"{file}:broken")


@pytest.mark.parametrize(
    ("text", "line", "error"),
    [
        ("x = 1\nimport no_such_package\n", "2: import no_such_package", "ModuleNotFoundError: No module named"),
        ("x = 1\n\ndef recipe(:\n", "3: def recipe(:", "SyntaxError: "),
        ("import sys\nsys.exit(3)\n", "2: sys.exit(3)", "SystemExit: 3"),
    ],
)
def test_a_file_that_does_not_import_shows_its_line(file, text, line, error):
    file.write_text(text)
    with pytest.raises(RecipeError) as failure:
        find_recipe(f"{file}:recipe")
    message = str(failure.value)
    assert message.startswith(f"{file} does not import\n")
    assert f"mine.py:{line}" in message
    assert error in message
    assert "mine" not in sys.modules
