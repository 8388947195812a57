"""What is installed by name suffices: a package that Outlay imports comes with it, or with the extra that is named."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

from tests.architecture.source_facts import parsed

from outlay.cli.failures import _EXTRA
from outlay.recipes.recipe_run import RecipeRun

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
APPLICATION = tomllib.loads((ROOT / "packages/outlay-brain/pyproject.toml").read_text(encoding="utf-8"))["project"]
OF_OTHERS = {"jaxlib": "jax", "markupsafe": "jinja2", "ml_dtypes": "jax", "orbax": "orbax-checkpoint", "PIL": "pillow"}
"""Packages that come with another, or whose distribution has another name."""
ABSENT_IS_FINE = {"IPython", "equinox", "haiku", "haliax", "libtpu", "penzai", "triton"}
"""Looked for where the user has imported them, or where hardware brings them."""


def _name(requirement: str) -> str:
    match = re.match(r"[\w.-]+", requirement)
    assert match
    return match[0].lower()


def _extras() -> dict[str, set[str]]:
    """The packages of each extra; of an application that it brings, those that it depends on."""
    extras = {name: {_name(text) for text in texts} for name, texts in PROJECT["optional-dependencies"].items()}
    own = {name: {_name(text) for text in texts} for name, texts in APPLICATION["optional-dependencies"].items()}
    extras["brain"] |= {"outlay.brain", *(_name(text) for text in APPLICATION["dependencies"])}
    return {name: packages | own.get(name, set()) for name, packages in extras.items()}


def test_every_package_that_is_imported_is_a_dependency_or_in_an_extra():
    declared = {_name(text) for text in PROJECT["dependencies"]}.union(*_extras().values())
    imported = {
        name.partition(".")[0]
        for folder in ("src", "packages/outlay-brain/src")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(parsed(path))
        for name in _imported(node)
    }
    distributions = packages_distributions()
    others = imported - set(sys.stdlib_module_names) - ABSENT_IS_FINE - {"outlay", "jax_plugins"}
    names = {name: {OF_OTHERS.get(name, name).lower(), *map(str.lower, distributions.get(name, ()))} for name in others}
    assert len(names) > 10
    assert not {name for name, called in names.items() if not called & declared}


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []


def test_an_extra_that_an_error_names_brings_the_package():
    extras = _extras()
    named = [*_EXTRA.items(), *RecipeRun.extras.items()]
    assert not [(name, extra) for name, extra in named if OF_OTHERS.get(name, name).lower() not in extras[extra]]


def test_what_is_released_together_has_one_version_and_asks_for_it():
    assert APPLICATION["version"] == PROJECT["version"]
    assert f"outlay=={PROJECT['version']}" in APPLICATION["dependencies"]
    asked = {text for name in ("brain", "fast-cpu") for text in PROJECT["optional-dependencies"][name]}
    assert asked == {f"outlay-brain=={PROJECT['version']}", f"outlay-brain[fast-cpu]=={PROJECT['version']}"}


def test_the_table_of_extras_in_the_guide_has_each_of_them():
    guide = (ROOT / "docs" / "guides" / "install.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `([\w-]+)` \|", guide, flags=re.MULTILINE))
    assert listed == set(_extras()) - {"docs"}


def test_how_to_install_stands_first():
    for page in ("README.md", "docs/index.md", "docs/tutorials/getting_started.py"):
        lines = (ROOT / page).read_text(encoding="utf-8").partition("# Outlay" if "index" in page else "# Getting")
        text = "".join(lines[2].splitlines(keepends=True)[:10]) if lines[1] else "".join(lines[0].splitlines(True)[:10])
        assert "pip install 'outlay[train]'" in text, page


def test_the_examples_are_in_the_wheel():
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["force-include"] == {"examples": "outlay/examples/programs"}
