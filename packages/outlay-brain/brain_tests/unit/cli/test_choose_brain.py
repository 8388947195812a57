"""`outlay choose` and `outlay explain` of a Brain, as a user meets them."""

import json

import pytest
from tests.unit.cli.command import command_here, outlay_command

import outlay
from outlay.core.error_types import RecipeError

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("blank_pictures")]

BRAIN = """\
dt = "1 ms"
connections = ["inputs:light -> eye:signal", "eye:spikes -> left:in_spikes", "left:out_spikes -> right:in_spikes"]

[inputs.light]
shape = [4]

[outputs]
seen = "right:out_spikes"

[modules.eye]
type = "linear_spiker"

[modules.left]
use = "population"

[modules.right]
use = "population"

[templates.population]
type = "neuron"
count = 30
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("brain")
    (folder / "small.toml").write_text(BRAIN)
    return folder


@pytest.fixture(scope="module")
def chosen(folder):
    finished = outlay_command("choose", "small.toml", "--target", "cpu:2", "--json", cwd=folder)
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)


def test_modules_are_measured_and_every_way_is_compared(chosen):
    assert chosen["is_measured"]
    assert list(chosen["parts"]) == ["eye", "left", "right"]
    ways = {(way["layout"], way["num_devices"]) for way in chosen["ways"]}
    assert ways == {("one device", 1), ("by-module", 2), ("by-neuron", 2), ("copies", 2)}
    assert chosen["chosen"]["seconds"] == min(way["measured"] for way in chosen["ways"] if way["measured"])


@pytest.mark.thorough  # test_choose.py runs the file of a search
def test_the_layout_it_writes_runs(folder, chosen):
    written = (folder / "chosen.toml").read_text().splitlines()
    assert [line for line in written if not line.startswith("# Checksum")] == chosen["toml"].splitlines()
    finished = command_here(
        *("run", "small.toml", "--layout", "chosen.toml", "--mode", "placed", "--devices", "8", "--steps", "20"),
        "--json",
        cwd=folder,
    )
    assert finished.exit_code == 0, finished.stderr
    ran = json.loads(finished.stdout)
    assert ran["mode"] == "placed"
    assert "measured one by one" in ran["modules"]


def test_what_narrows_a_search_of_layouts_is_not_for_brains(folder):
    with pytest.raises(RecipeError, match="a graph of parts, whose ways to run are all compared: layouts, mode cannot"):
        outlay.choose(str(folder / "small.toml"), target="cpu:3", layouts=["copies"], mode="auto")


def test_it_is_explained_part_by_part(folder):
    finished = command_here(
        *("explain", "small.toml", "--devices", "8", "--mode", "placed", "--max-bytes", "1", "--html", "page.html"),
        cwd=folder,
    )
    assert finished.exit_code == 1, finished.stderr
    assert "(sum / max)" in finished.stdout
    assert "left:out_spikes" in finished.stdout
    assert "over budget: a device sends 30 B a step, limit 1 B" in finished.stderr
    assert "cache" in (folder / "page.html").read_text()
