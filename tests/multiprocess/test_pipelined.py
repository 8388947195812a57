"""A pipeline whose stages are two processes learns what one device learns."""

import json
import subprocess
from pathlib import Path

import jax
import numpy as np
import pytest
from tests import forks
from tests.multiprocess.pipelined_training import trained
from tests.unit.cli.command import environment, forked_outlay

WORKER = Path(__file__).parent / "pipelined_worker.py"
pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]


# test_pipelines.py has models that scan, test_pipelines_elsewhere.py lists, test_placed_stages.py other schedules.
@pytest.mark.parametrize(
    "ways", [("1f1b",), pytest.param(("of a list", "one program", "zb-h1"), marks=pytest.mark.thorough)]
)
def test_the_stages_are_processes(ways: tuple[str, ...], tmp_path: Path) -> None:
    launch = ("launch", "-n", "2", "--devices-per-process", "2")
    command = [*forked_outlay(), *launch, "--", forks.python(), str(WORKER), str(tmp_path), *ways]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    first, second = (json.loads((tmp_path / f"{process}.json").read_text()) for process in range(2))
    assert first == second
    for way in ways:
        with jax.numpy_rank_promotion("allow"):  # as in the processes
            alone = trained(way, pipelined=False)
        for what, numbers in alone.items():
            np.testing.assert_allclose(first[way][what], numbers, rtol=2e-6, err_msg=f"{way}: {what}")
