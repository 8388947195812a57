"""Buckets, several steps a call and patience in a job of two processes: the numbers of one device, the same end."""

import numpy as np
import pytest
from tests.multiprocess import fit_options_worker
from tests.multiprocess.run_workers import run_workers


@pytest.mark.timeout(300)
def test_two_processes_train_as_one_device_and_end_together(tmp_path):
    workers, alone = tmp_path / "workers", tmp_path / "alone"
    workers.mkdir()
    alone.mkdir()
    both = run_workers(fit_options_worker.__file__, workers, num_processes=2, devices_per_process=1)
    expected = fit_options_worker.trained(alone, 1)
    assert {name: len(steps) for name, steps in expected.items()} == {
        "buckets": 6,
        "begun": 8,
        "continued": 12,  # of 14: patience counts the evaluations before the run was continued
    }
    for process, one in enumerate(both):
        for name, steps in expected.items():
            # Only the first reads what the metrics file has of the steps before.
            own = steps[8:] if name == "continued" and process else steps
            np.testing.assert_allclose(one[name], own, rtol=1e-6, err_msg=f"{name}, process {process}")
