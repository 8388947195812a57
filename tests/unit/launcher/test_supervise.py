"""A launcher that is held itself, as by SIGSTOP, takes nobody's silence for its own."""

import io
import itertools
import subprocess
import sys
import time

import pytest
from rich.console import Console

from outlay.jobs.job_folder import Beat, JobFolder
from outlay.jobs.stall import Limits
from outlay.launcher import supervise
from outlay.launcher.console import OutputConsole
from outlay.launcher.merged_output import MergedOutput
from outlay.launcher.process import Process
from outlay.launcher.supervise import JobProgress, Supervisor, slowest

pytestmark = pytest.mark.processes


class Steps(JobFolder):
    """A job whose process takes a step between every other look."""

    looks = itertools.count()

    def beat(self, process: int) -> Beat:
        step = next(self.looks) // 2
        return Beat(step, float(step), f"step {step + 1}", 1000)


class Spawned(Process):
    """Started without a fork, which the threads of JAX in this process forbid."""

    def __init__(self, *command: str, number: int = 0) -> None:
        self.number, self.exit_code, self.ended = number, None, None
        self.popen = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )


@pytest.mark.parametrize("judges", [False, True], ids=["before its judgement", "in the middle of it"])
def test_held_between_a_look_and_its_judgement_it_looks_again(tmp_path, monkeypatch, judges):
    seen = []
    place, name = (Supervisor, "_facts") if judges else (JobProgress, "show")
    own = getattr(place, name)

    def hold(self, beats, *more):
        seen.append(beats[0].step)
        if seen[-2:] == [2, 2]:  # the beat is old, and here this process does not run for a while
            time.sleep(1.5)
        return own(self, beats, *more)

    monkeypatch.setattr(place, name, hold)
    monkeypatch.setattr(supervise, "_SUSPENDED", 0.75)
    output = MergedOutput(1, tmp_path / "output.log", OutputConsole())
    process = Spawned(sys.executable, "-c", "import time; time.sleep(4)")
    ending = Supervisor([process], Steps(tmp_path, "test"), output, Limits(stuck_after=1.0)).watch()
    output.close()
    assert len(seen) > 10
    assert ending.exit_code == 0, ending.text


LOST = "Gloo AllGather failed: [external/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer"


def test_one_that_takes_long_to_end_is_to_blame_not_who_lost_it(tmp_path):
    """Connections close before a process has ended: writing its core, or its stack, takes seconds."""
    output = MergedOutput(2, tmp_path / "output.log", OutputConsole())
    lost = f"import sys; print({LOST!r}, file=sys.stderr); sys.exit(13)"
    processes = [
        Spawned(sys.executable, "-c", lost, number=0),
        Spawned(sys.executable, "-c", "import os, time; time.sleep(2); os._exit(7)", number=1),
    ]
    ending = Supervisor(processes, JobFolder(tmp_path), output, Limits()).watch()
    output.close()
    assert "process 1 of 2 failed first: exit code 7" in ending.text
    assert ending.exit_code == 7


@pytest.fixture(autouse=True)
def at_any_time(monkeypatch):
    monkeypatch.setattr(supervise, "_EVERY", 0)


def shown(beats, seconds_a_step, *, is_terminal=True):
    text = io.StringIO()
    with JobProgress(Console(file=text, force_terminal=is_terminal, width=200, color_system=None)) as progress:
        progress.show(beats, seconds_a_step)
    return text.getvalue()


def test_one_line_for_all_processes():
    beats = {0: Beat(12, 1.0, "step 13", 100), 1: Beat(10, 1.0, "step 11", 100), 2: None}
    text = shown(beats, 0.25)
    assert "step 10/100" in text
    assert "0.25 s a step, slowest: process 1, step 11, 2 behind" in text


def test_before_the_first_step_it_says_what_goes_on():
    text = shown({0: Beat(None, 1.0, "compiling"), 1: Beat(None, 2.0, "joining")}, None)
    assert "step 0/?" in text
    assert "slowest: process 1, joining" in text
    assert "behind" not in text


def test_nothing_is_shown_where_there_is_no_terminal():
    assert shown({0: Beat(1, 1.0, "step 2", 10)}, 1.0, is_terminal=False) == ""


def test_of_processes_at_one_step_the_last_to_come_there_is_the_slowest():
    assert slowest({0: Beat(5, 10.0, "step 6"), 1: Beat(5, 10.2, "step 6"), 2: Beat(6, 10.3, "step 7")}) == 1
