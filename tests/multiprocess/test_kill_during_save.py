"""One of two processes that save together is killed, then the other: no checkpoint is lost. Alone: test_killed.py."""

import subprocess
from pathlib import Path

import pytest
from tests import forks
from tests.unit.cli.command import environment

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "kill_during_save.py"


@pytest.mark.thorough  # test_killed.py has one process
@pytest.mark.timeout(600)  # 25 s on a machine that does nothing else
def test_no_checkpoint_is_lost_when_one_of_two_processes_is_killed():
    command = [forks.python(), str(SCRIPT), "--kills", "2", "--processes", "2"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 kills of one of 2 processes" in done.stdout
    assert done.stdout.rstrip().endswith("none lost")
