"""The public names and the options of a Brain are promises: a change is a decision, accepted with `make snapshots`."""

from pathlib import Path
from pkgutil import resolve_name

import pytest
import typer
from tests.architecture.test_cli_options import described_by
from tests.architecture.test_extras import OF_OTHERS, _extras
from tests.architecture.test_public_api import check_public_name, names_of_facade

from outlay.brain.brain_command import brain
from outlay.brain.run import LAYOUTS
from outlay.brain.run.from_file import ab_brain
from outlay.brain.run.run_recipe import BrainRecipeRun
from outlay.core.entry_points import GROUPS, entry_points

HERE = Path(__file__).parent
NAMES, OPTIONS = HERE / "brain_names.txt", HERE / "brain_options.txt"


def described() -> str:
    return described_by(typer.main.get_group(brain), "outlay brain")


def test_the_public_names_are_those_of_the_snapshot():
    assert list(names_of_facade("brain")) == NAMES.read_text().split(), "if that is intended, run `make snapshots`"


def test_the_options_are_those_of_the_snapshot():
    assert described() == OPTIONS.read_text(), "the command line changed: if that is intended, run `make snapshots`"


@pytest.mark.parametrize("name", names_of_facade("brain"))
def test_a_public_name_resolves_to_something_documented_that_its_module_defines(name):
    check_public_name(name, names_of_facade("brain")[name])


def test_what_a_brain_plugs_in_is_there():
    plugged = [reference for group in GROUPS for reference in entry_points(group).values()]
    assert len([each for each in plugged if each.startswith("outlay.brain") and resolve_name(each)]) >= 6


def test_the_layouts_that_a_shell_completes_are_those_of_the_recipe():
    assert tuple(ab_brain().layouts) == LAYOUTS


def test_an_extra_that_an_error_names_brings_the_package():
    extras = _extras()
    named = BrainRecipeRun.extras.items()
    assert not [(name, extra) for name, extra in named if OF_OTHERS.get(name, name).lower() not in extras[extra]]


if __name__ == "__main__":
    NAMES.write_text("\n".join(names_of_facade("brain")) + "\n")
    OPTIONS.write_text(described())
    print(f"wrote {NAMES.name} and {OPTIONS.name}")
