"""`outlay run` of a Brain's file, inside this process, which has eight simulated devices."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from outlay.cli.main import app
from outlay.train.recording import Recording

pytestmark = [pytest.mark.compiles, pytest.mark.usefixtures("blank_pictures")]

PAIR = """\
dt = "1 ms"
connections = ["inputs:light -> eye:signal", "eye:spikes -> cells:in_spikes"]

[inputs.light]
shape = [6]

[outputs]
spikes = "cells:out_spikes"

[modules.eye]
type = "linear_spiker"

[modules.cells]
type = "neuron"
count = 10
soma = {type = "leaky", resistance = "1 GOhm/ms"}
synapses = {type = "linear", kernel = {type = "uniform", scale = 20}}
"""


def outlay(*arguments: str):
    return CliRunner().invoke(app, arguments)


@pytest.fixture
def pair(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pair.toml").write_text(PAIR)
    np.save(tmp_path / "light.npy", np.full((300, 6), 0.8, np.float32))
    return tmp_path


def test_a_run_leaves_a_folder_that_tells_all_of_it(pair):
    done = outlay("run", "pair.toml", "--steps", "300", "--input", "light=light.npy")
    assert done.exit_code == 0, done.output
    names = {path.name for path in (pair / "runs/pair").iterdir()}
    pictures = {"raster.png", "rates.png", "potentials.png", "weights.png", "graph.png"}
    assert (
        names
        == {"config.json", "outlay.txt", "plan.json", "recording.zarr", "rates.csv", "report.html", "times.jsonl"}
        | pictures
    )
    assert "simulated 300 ms in 300 steps of 1 ms" in done.stdout
    assert "300/300 ms" in done.stderr
    assert list(Recording.read(pair / "runs/pair/recording.zarr")) == ["cells.soma.potential"]
    page = (pair / "runs/pair/report.html").read_text()
    assert page.count("data:image/png;base64,") == 5
    rows = (pair / "runs/pair/rates.csv").read_text().splitlines()
    assert rows[0] == "time_ms,eye,cells"
    assert len(rows) == 1 + 60


def test_what_is_recorded_is_what_was_asked_for(pair):
    options = [
        "--record",
        "*:*spikes",
        "--record",
        "**.kernel",
        "--stride",
        "10",
        "--window",
        "100..200",
        "--seed",
        "3",
    ]
    done = outlay("run", "pair.toml", "--steps", "300", "--input", "light=0.8", *options, "--json")
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert result["recorded"] == ["eye:spikes", "cells:out_spikes", "cells.synapses.kernel"]
    assert Recording.read(pair / "runs/pair/recording.zarr").steps.tolist() == list(range(109, 200, 10))
    config = json.loads((pair / "runs/pair/config.json").read_text())
    assert (config["stride"], config["windows"], config["seed"]) == (10, [[100, 200]], 3)


@pytest.mark.thorough  # test_recording_faults.py has it in this process
def test_force_replaces_the_run_and_its_recording(pair):
    for steps in ("300", "20"):
        done = outlay("run", "pair.toml", "--steps", steps, "--force")
        assert done.exit_code == 0, done.output
    assert len(Recording.read(pair / "runs/pair/recording.zarr").steps) == 20
    again = outlay("run", "pair.toml", "--steps", "20")
    assert again.exit_code == 2
    assert "--force to replace the run" in again.stderr


def test_a_state_that_is_not_finite_leaves_what_was_recorded(pair):
    light = np.full((300, 6), 0.8, np.float32)
    light[250:] = np.inf
    np.save(pair / "light.npy", light)
    done = outlay("run", "pair.toml", "--input", "light=light.npy", "--chunk", "50")
    assert done.exit_code == 2
    assert "error: the run stopped before step 250" in done.stderr
    assert "light\n    it is inf in step 250 at [0]" in done.stderr
    assert len(Recording.read(pair / "runs/pair/recording.zarr").steps) == 250


@pytest.mark.thorough  # test_examples_and_commands.py takes Brains through the commands
@pytest.mark.some_cases(1)
@pytest.mark.parametrize("layout", ["by-module", "by-neuron"])
def test_show_and_verify_take_a_brain(pair, layout):
    shown = outlay("show", "pair.toml", "--layout", layout)
    assert shown.exit_code == 0, shown.output
    assert "cells.synapses.kernel" in shown.stdout
    same = outlay("verify", "pair.toml", "--layout", layout, "--steps", "2")
    assert same.exit_code == 0, same.output
    assert "the same: all" in same.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--recrod", "x"], "there is no option --recrod: did you mean '--record'"),
        (["--record", "cell:out_spikes"], "did you mean 'cells:out_spikes'"),
        (["--window", "5"], "'5' is not a window of time"),
        (["--trigger", "cells"], "'cells' is not a trigger"),
        (["--input", "light=dark.npy"], "there is no file dark.npy"),
        (["--input", "ligth=0.5"], "did you mean 'light'"),
        (["--checkpoint-every", "5", "--stride", "2"], "between two of the steps that are recorded, every 2"),
        (["--input", "light=light.npy", "--steps", "301"], "there are inputs for 300 steps, but the run needs 301"),
    ],
)
def test_what_cannot_be_run_says_why(pair, arguments, message):
    done = outlay("run", "pair.toml", *arguments)
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.thorough  # test_saves.py continues one, and test_checkpoint.py by its command
def test_a_run_of_a_brain_is_continued(pair):
    refused = outlay("run", "pair.toml", "--steps", "20")
    again = outlay("run", "pair.toml", "--steps", "40", "--resume")
    assert (refused.exit_code, again.exit_code) == (0, 2)
    assert "saved no checkpoints, so there is nothing to continue it from" in again.stderr
    saved = outlay("run", "pair.toml", "--steps", "20", "--force", "--checkpoint-every", "10", "--record", "**.kernel")
    more = outlay("run", "pair.toml", "--steps", "40", "--resume", "--record", "**.kernel")
    assert (saved.exit_code, more.exit_code) == (0, 0), more.output
    assert Recording.read(pair / "runs/pair/recording.zarr").steps.tolist() == [*range(40)]


def test_a_file_that_is_not_there(pair):
    missing = outlay("run", "none.toml")
    assert missing.exit_code == 2
    assert "none.toml" in missing.stderr


def test_a_file_that_does_not_say_the_shapes_of_its_inputs_runs_with_shape(pair):
    newest = str(Path(__file__).parents[2] / "data" / "spark_1_2.scfg")
    for command in ("run", "show", "verify"):
        asked = outlay(command, newest, "--input", "drive=0.5", *([] if command == "show" else ["--steps", "2"]))
        assert asked.exit_code == 2
        assert "--shape drive=4" in asked.stderr
    done = outlay("run", newest, "--input", "drive=0.5", "--shape", "drive=4", "--steps", "20", "--json")
    assert done.exit_code == 0, done.output
    shown = outlay("show", newest, "--shape", "drive=4")
    assert shown.exit_code == 0, shown.output


def test_a_package_that_is_missing_is_named_before_anything_is_written(pair, monkeypatch):
    for package in ("tensorstore", "matplotlib"):
        monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    refused = outlay("run", "pair.toml", "--steps", "3", "--record", "*:out_spikes")
    assert refused.exit_code == 2
    assert "needs matplotlib for its figures, tensorstore for its recordings" in refused.stderr
    assert "fix: pip install 'outlay[brain]'" in refused.stderr
    assert not (pair / "runs").exists()
