"""Training moved from one process to two and to four, through checkpoints, is the training that never moved."""

from pathlib import Path

import numpy as np
import pytest
from tests.multiprocess.checkpoints_training import train_on
from tests.multiprocess.run_workers import run_workers

import outlay
from outlay.train.checkpoint.manifest import Manifest
from outlay.train.checkpoint.whole import read_manifest

WORKER = Path(__file__).parent / "checkpoints_worker.py"
REPLICATED = [*outlay.data_parallel(), ("**", outlay.replicate())]
pytestmark = pytest.mark.timeout(600)


def test_training_moves_between_numbers_of_processes(tmp_path):
    never_moved = train_on(tmp_path / "whole", 10)["losses"]
    losses = list(train_on(tmp_path / "checkpoints", 2)["losses"])
    for num_processes, num_steps in ((2, 5), (4, 8)):
        (tmp_path / "num_steps").write_text(str(num_steps))
        found = run_workers(WORKER, tmp_path, num_processes=num_processes, devices_per_process=8 // num_processes)
        assert all(one == found[0] for one in found)
        assert found[0]["first"] == len(losses)
        assert found[0]["steps"][-1] == num_steps
        losses += found[0]["losses"]
        manifest = read_manifest(tmp_path / "checkpoints" / str(num_steps))
        assert isinstance(manifest, Manifest)
        assert manifest.written_by["processes"] == str(num_processes)
    losses += train_on(tmp_path / "checkpoints", 10, REPLICATED)["losses"]
    np.testing.assert_allclose(losses, never_moved, rtol=1e-6)
