"""A launcher that is held itself, as by SIGSTOP, takes nobody's silence for its own."""

import itertools
import subprocess
import sys
import time

import pytest

from outlay.jobs import supervise
from outlay.jobs.job_folder import Beat, JobFolder
from outlay.jobs.merged_output import MergedOutput
from outlay.jobs.process import Process
from outlay.jobs.screen import Screen
from outlay.jobs.silence import Limits
from outlay.jobs.supervise import JobProgress, Supervisor

pytestmark = pytest.mark.processes


class Steps(JobFolder):
    """A job whose process takes a step between every other look."""

    looks = itertools.count()

    def beat(self, process: int) -> Beat:
        step = next(self.looks) // 2
        return Beat(step, float(step), f"step {step + 1}", 1000)


class Spawned(Process):
    """Started without a fork, which the threads of JAX in this process forbid."""

    def __init__(self, *command: str) -> None:
        self.number, self.exit_code, self.ended = 0, None, None
        self.popen = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )


def test_held_between_a_look_and_its_judgement_it_looks_again(tmp_path, monkeypatch):
    seen = []

    def show(self, beats, seconds_a_step):
        seen.append(beats[0].step)
        if seen[-2:] == [2, 2]:  # the beat is old, and here this process does not run for a while
            time.sleep(1.5)

    monkeypatch.setattr(JobProgress, "show", show)
    monkeypatch.setattr(supervise, "_SUSPENDED", 0.75)
    output = MergedOutput(1, tmp_path / "output.log", Screen())
    process = Spawned(sys.executable, "-c", "import time; time.sleep(4)")
    ending = Supervisor([process], Steps(tmp_path, "test"), output, Limits(stuck_after=1.0)).watch()
    output.close()
    assert len(seen) > 10
    assert ending.exit_code == 0, ending.text
