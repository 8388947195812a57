"""Processes that watch each other over real lines; they do not import JAX, so that each starts in no time."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from outlay.jobs.peer_watch import LOST
from outlay.launcher.job import free_port

pytestmark = pytest.mark.processes

WORKER = str(Path(__file__).parent / "peer_watch_worker.py")
HANGS = 90  # seconds


def run(fault, num=2):
    """Exit code and output of each, once all but those that are held have ended."""
    port = str(free_port())
    jobs = [
        subprocess.Popen(
            [sys.executable, WORKER, str(process), str(num), port, fault],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for process in range(num)
    ]
    held = {"stop": 1, "stop0": 0}.get(fault)
    try:
        for process, job in enumerate(jobs):
            if process != held:
                job.wait(HANGS)
        if held is not None:
            jobs[held].send_signal(signal.SIGCONT)
        return [(job.wait(HANGS), job.stdout.read()) for job in jobs]
    finally:
        for job in jobs:
            job.kill()
            job.wait()
            job.stdout.close()


@pytest.mark.some_cases(2)
@pytest.mark.parametrize("fault", ["none", "late", "late0", "never"])
def test_a_healthy_job_ends_well_whatever_takes_long(fault):
    done = run(fault, num=3 if fault == "none" else 2)
    assert [code for code, _ in done] == [0] * len(done), done
    if fault != "none" and fault != "never":
        assert "evaluated" in "".join(text for _, text in done)


def test_one_that_goes_after_its_last_step_is_named_when_the_others_have_done_their_work():
    """At the end of JAX they would wait for it for minutes."""
    done = run("goes")
    assert [code for code, _ in done] == [LOST, 0], done
    assert done[0][1].startswith("evaluated\nprocess 1 of 2 on ")
    assert "has gone without a word after its last step" in done[0][1]


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("process", [0, 1])
def test_all_end_with_the_code_and_the_reason_of_the_one_that_failed(process):
    done = run("raise" + "0" * (process == 0))
    assert [code for code, _ in done] == [13, 13], done
    assert f"process {process} of 2 on " in done[1 - process][1]
    assert "failed first: ValueError: planted; exit code 13" in done[1 - process][1]


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("process", [0, 1])
def test_one_that_is_killed_is_lost(process):
    done = run("kill" + "0" * (process == 0))
    assert done[process][0] == -signal.SIGKILL
    assert done[1 - process][0] == LOST
    assert f"process {process} of 2 on " in done[1 - process][1]
    assert "has gone without a word" in done[1 - process][1]


def test_who_only_says_that_another_has_gone_is_not_the_one_that_failed():
    done = run("echo", num=3)
    assert [code for code, _ in done] == [LOST, 5, LOST], done
    assert all("process 1 of 3" in done[process][1] for process in (0, 2))


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("process", [0, 1])
def test_one_that_ends_early_does_not_keep_the_others(process):
    done = run("early" + "0" * (process == 0))
    assert [code for code, _ in done] == [1, 1], done
    assert f"process {process} of 2 on " in done[1 - process][1]
    assert "ended early, while the others wait for it" in done[1 - process][1]
    assert "in <module>" in done[1 - process][1]


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("process", [0, 1])
def test_a_hang_is_seen_and_shown(process):
    done = run("hang" + "0" * (process == 0))
    assert [code for code, _ in done] == [1, 1], done
    assert all("the job is stuck\nprocess 0 of 2" in text for _, text in done)
    assert "in happens" in done[process][1]


@pytest.mark.parametrize("process", [0, 1])
def test_a_process_that_is_held_is_found_and_ends_when_it_goes_on(process):
    done = run("stop" + "0" * (process == 0))
    assert done[1 - process][0] == 1, done
    assert "the job is stuck" in done[1 - process][1]
    assert f"process {process} of 2 on " in done[1 - process][1]
    assert done[process][0] in (1, LOST)
    if process:  # its last beat may be older than its last step
        assert "no sign of life for" in done[0][1]
        assert "and it may have gone on from there" in done[0][1]


def test_a_forked_worker_does_not_keep_the_line_of_its_parent_open():
    done = run("fork")
    assert done[1][0] == -signal.SIGKILL
    assert done[0][0] == 0, done
