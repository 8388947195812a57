"""Somebody stops the launcher: nothing is left behind."""

import signal
import time

import pytest
from tests.multiprocess import jobs

LONGEST = 280  # seconds after which it hangs


@pytest.fixture
def running(tmp_path):
    mark = tmp_path / "mark"
    job = jobs.start(fault="endless", mark=mark, forked=False)
    assert job.stdout
    assert "running" in job.stdout.readline()
    yield job, mark
    job.kill()
    for process in jobs.left_of(mark):
        process.kill()
    job.communicate()


@pytest.mark.some_cases(1)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopping_the_launcher_ends_all(running, number, code):
    job, mark = running
    job.send_signal(number)
    job.wait(LONGEST)
    assert not jobs.left_of(mark)
    assert job.returncode == code
    assert job.stderr.read().rstrip().endswith(f"stopped by {number.name}: all processes ended")


def test_nothing_survives_a_launcher_that_is_killed(running):
    job, mark = running
    assert len(jobs.left_of(mark)) == 3
    job.kill()
    job.wait(LONGEST)
    deadline = time.monotonic() + LONGEST
    while jobs.left_of(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not jobs.left_of(mark)
