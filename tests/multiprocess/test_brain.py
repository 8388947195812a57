"""The same spikes in several processes as on one device, bit for bit. One process: test_by_rows.py."""

import pickle
import sys
from pathlib import Path

import pytest
from tests.multiprocess.brain_runs import PROCESSES
from tests.unit.cli.command import outlay_command
from tests.unit.program.waves import assert_same

WORKER = Path(__file__).parent / "brain_worker.py"
# What else makes tests quick would round otherwise.
FLAGS = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for num_processes in PROCESSES["waves"]:
        devices = 1 if num_processes == 1 else 6 // num_processes
        command = ("launch", "-n", str(num_processes), "--devices-per-process", str(devices), "--", sys.executable)
        done = outlay_command(*command, str(WORKER), str(folder), cwd=folder, XLA_FLAGS=FLAGS)
        assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("name", PROCESSES)
def test_every_process_has_what_one_device_computes(folder, name):
    files = [folder / f"{num}-{process}.pickle" for num in PROCESSES[name] for process in range(num)]
    alone, *others = (pickle.loads(file.read_bytes())[name] for file in files)
    if name == "brain":
        for spikes in alone[1]["recorded"].values():
            assert abs(spikes).sum() > 50
    for other in others:
        assert_same(other, alone)
