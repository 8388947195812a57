"""The same spikes in several processes as on one device, bit for bit. One process, and its start: test_by_rows.py."""

import pickle
from pathlib import Path

import pytest
from tests import forks
from tests.multiprocess.brain_runs import PROCESSES
from tests.unit.cli.command import outlay_command
from tests.unit.program.waves import assert_same

WORKER = Path(__file__).parent / "brain_worker.py"
pytestmark = pytest.mark.timeout(300)


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
