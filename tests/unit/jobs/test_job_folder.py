import fcntl
import os
import tempfile

import pytest

from outlay.jobs import heartbeat
from outlay.jobs.heartbeat import beat
from outlay.jobs.job_folder import BEAT_SIZE, Beat, Failure, Flag, JobFolder, JoinedProcess, new_job_folder, padded


def test_what_is_written_is_read_back(tmp_path):
    folder = JobFolder(tmp_path)
    who = JoinedProcess(1, 2, "host", 77, [{"id": 0, "kind": "cpu", "platform": "cpu"}], "a:1", {"process": "X"})
    failure = Failure(1.5, "ValueError", "wrong", "Traceback ...", 13)
    assert folder.joined(1) is None
    assert folder.failure(1) is None
    folder.write_joined(who)
    folder.write_failure(1, failure)
    assert (folder.joined(1), folder.failure(1)) == (who, failure)


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_folders_of_failed_jobs_stay_but_for_all_except_the_last_few(temporary):
    for number in range(8):
        old = temporary / f"outlay-job-{number}"
        old.mkdir()
        for name in ("launcher", "output.log"):
            (old / name).touch()
        os.utime(old / "launcher", (number, number))
    lives, foreign = temporary / "outlay-job-0", temporary / "outlay-job-of-somebody-else"
    foreign.mkdir()
    (foreign / "thesis.tex").touch()
    os.utime(foreign, (0, 0))
    (temporary / "outlay-job-link").symlink_to(lives)
    with (lives / "launcher").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with new_job_folder() as folder:
            pass
    left = {path.name for path in temporary.iterdir()}
    numbers = {f"outlay-job-{number}" for number in (0, 3, 4, 5, 6, 7)}
    assert left == {*numbers, folder.path.name, foreign.name, "outlay-job-link"}
    assert (foreign / "thesis.tex").exists()


def test_a_folder_is_its_launchers_as_long_as_that_lives(temporary):
    with new_job_folder() as first:
        os.utime(first.launcher_path, (0, 0))
        others = []
        for _ in range(7):
            with new_job_folder() as folder:
                others.append(folder)
        assert first.path.exists()
    assert not others[0].path.exists()
    assert len({folder.mark for folder in (first, *others)}) == 8


def test_a_restart_begins_with_nothing_but_the_output(tmp_path):
    folder = JobFolder(tmp_path)
    folder.write_failure(0, Failure(1.0, "E", "m", "t", 13))
    folder.output_path.write_text("[0] line\n")
    assert folder.failure(0)
    folder.clear()
    assert folder.failure(0) is None
    assert folder.output_path.exists()


def test_a_restart_remembers_that_the_job_has_begun(tmp_path):
    folder = JobFolder(tmp_path)
    assert not folder.has(Flag.BEGUN)
    folder.set(Flag.BEGUN)
    folder.clear()
    assert folder.has(Flag.BEGUN)


def test_a_beat_keeps_what_it_is_not_told(tmp_path, monkeypatch):
    monkeypatch.setattr(heartbeat, "_file", None)  # and again when the test ends
    heartbeat.start_beating(JobFolder(tmp_path), 0)
    beat(3, "step 4", 9)
    beat(None, "saving")
    last_beat = JobFolder(tmp_path).beat(0)
    assert (last_beat.step, last_beat.of, last_beat.doing) == (3, 9, "saving")


def test_a_beat_fits_its_file_however_long_its_words(tmp_path):
    folder = JobFolder(tmp_path)
    folder.beat_path(0).write_bytes(padded(Beat(3, 1.0, "é" * 500)))
    assert folder.beat_path(0).stat().st_size == BEAT_SIZE
    assert folder.beat(0).step == 3


def test_no_beat_before_the_first_and_none_outside_a_job(tmp_path):
    beat(1, "step 2")
    folder = JobFolder(tmp_path)
    assert folder.beat(0) is None
    folder.beat_path(0).write_bytes(b" " * BEAT_SIZE)
    assert folder.beat(0) is None
