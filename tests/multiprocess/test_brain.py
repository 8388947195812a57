"""The same spikes in two and three processes as on one device, bit for bit. One process: test_by_neuron.py."""

import pickle
import sys
from pathlib import Path

import pytest
from tests.multiprocess.brain_runs import RUNS, on_one_device
from tests.unit.cli.command import outlay_command
from tests.unit.execute.waves import assert_same

WORKER = Path(__file__).parent / "brain_worker.py"
PROCESSES = (2, 3)
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for num_processes in PROCESSES:
        options = ("-n", str(num_processes), "--devices-per-process", str(6 // num_processes))
        done = outlay_command("launch", *options, "--", sys.executable, str(WORKER), str(folder), cwd=folder)
        assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("name", RUNS)
def test_every_process_has_what_one_device_computes(folder, name):
    expected = on_one_device(RUNS[name]())
    if name == "brain":
        for spikes in expected[1]["recorded"].values():
            assert abs(spikes).sum() > 50
    files = sorted(folder.glob("*.pickle"))
    assert len(files) == sum(PROCESSES)
    for file in files:
        assert_same(pickle.loads(file.read_bytes())[name], expected)
