"""The same spikes in several processes as on one device, bit for bit. One process, and its start: test_by_rows.py."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from brain_tests.multiprocess.brain_runs import PROCESSES
from tests import forks
from tests.unit.cli.command import outlay_command
from tests.unit.program.waves import assert_same
from typer.testing import CliRunner

from outlay.cli.main import app
from outlay.train.recording import Recording

WORKER = Path(__file__).parent / "brain_worker.py"
pytestmark = pytest.mark.timeout(300)


@pytest.mark.thorough  # the command below has two processes
@pytest.mark.parametrize("name", PROCESSES)
def test_every_process_has_what_one_device_computes(tmp_path, name):
    num_processes = PROCESSES[name]
    command = ("launch", "-n", str(num_processes), "--devices-per-process", str(6 // num_processes), "--")
    done = outlay_command(*command, forks.python(), str(WORKER), name, str(tmp_path), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    files = [tmp_path / f"{name}-{process}.pickle" for process in range(num_processes)]
    results = [pickle.loads(file.read_bytes()) for file in files]
    alone = results[0][1]
    if name.endswith("brain"):
        for spikes in alone[1]["recorded"].values():
            assert abs(spikes).sum() > 50
    for together, _ in results:
        assert_same(together, alone)


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
count = 6
soma = {type = "leaky", resistance = "1 GOhm/ms"}
synapses = {type = "linear", kernel = {type = "uniform", scale = 20}}
"""


@pytest.mark.usefixtures("blank_pictures")
def test_the_command_runs_each_part_in_a_process_of_its_own(tmp_path, monkeypatch):
    """The smallest of what `outlay run ab_brain --processes 2 --mode placed` does."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pair.toml").write_text(PAIR)
    run = ("run", "pair.toml", "--steps", "40", "--input", "light=0.8", "--run-folder")
    done = outlay_command(*run, "placed", "--processes", "2", "--mode", "placed", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    alone = CliRunner().invoke(app, [*run, "alone"])
    assert alone.exit_code == 0, alone.output
    recorded, expected = (dict(Recording.read(tmp_path / name / "recording.zarr")) for name in ("placed", "alone"))
    assert list(recorded) == list(expected) != []
    for address, values in expected.items():
        assert np.abs(values).sum() > 20
        np.testing.assert_array_equal(recorded[address], values)
    rates = [(tmp_path / name / "rates.csv").read_text() for name in ("placed", "alone")]
    assert rates[0] == rates[1]
    assert json.loads((tmp_path / "placed" / "config.json").read_text())["mode"] == "placed"
