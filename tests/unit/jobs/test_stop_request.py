import os
import signal
import subprocess
import sys

import pytest

from outlay.jobs import process_info, stop_request
from outlay.jobs.job_folder import Flag, JobFolder
from outlay.jobs.stop_request import Stopped, agree_on, exit_code, is_requested, listen, listening


@pytest.fixture(autouse=True)
def not_asked(monkeypatch):
    monkeypatch.setattr(stop_request, "_is_requested", False)
    monkeypatch.setattr(stop_request, "_folder", None)
    monkeypatch.setattr(stop_request, "_exit_code", 75)
    # Without workers pytest itself answers SIGTERM, by ending.
    before = {signal.SIGUSR1: signal.SIG_IGN, signal.SIGTERM: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in before.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_the_signal_asks_for_a_stop():
    listen()
    assert not is_requested()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert is_requested()


def test_under_the_launcher_the_signal_asks_for_stacks_and_the_launcher_for_a_stop(monkeypatch, tmp_path):
    monkeypatch.setenv(process_info.JOB_DIR, str(tmp_path))
    folder = JobFolder(tmp_path)
    assert not folder.has(Flag.LISTENS)
    listen()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert folder.has(Flag.LISTENS)
    assert not is_requested()
    folder.set(Flag.STOP)
    assert is_requested()


def test_a_stop_ends_the_program_with_its_own_code():
    stopped = Stopped("stopped after step 3")
    assert isinstance(stopped, SystemExit)
    assert (stopped.code, str(stopped)) == (75, "stopped after step 3")
    assert (Stopped("stopped", 143).code, str(Stopped("stopped", 143))) == (143, "stopped")


def test_sigterm_asks_for_a_stop_within_a_run_only():
    with listening():
        os.kill(os.getpid(), signal.SIGTERM)
        assert is_requested()
        assert exit_code() == 143
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_handler_of_the_program_stays():
    heard = []
    signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
    try:
        with listening():
            os.kill(os.getpid(), signal.SIGTERM)
        assert heard
        assert not is_requested()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def test_sigterm_counts_for_more_than_sigusr1():
    with listening():
        os.kill(os.getpid(), signal.SIGUSR1)
        assert exit_code() == 75
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGUSR1)
    assert exit_code() == 143


def test_all_end_with_what_they_agree_on():
    agree_on(143)
    assert exit_code() == 143


@pytest.mark.processes
def test_sigterm_of_all_processes_of_a_job_asks_too_and_that_of_their_launcher_ends_them(monkeypatch, tmp_path):
    monkeypatch.setenv(process_info.JOB_DIR, str(tmp_path))
    with listening():
        os.kill(os.getpid(), signal.SIGTERM)
        assert is_requested()
        assert exit_code() == 143
    ended = subprocess.run(
        [sys.executable, "-c", SECOND.replace("range(2)", "range(1)")],
        env={**os.environ, process_info.JOB_DIR: str(ending(tmp_path / "other"))},
        timeout=280,
        check=False,
    )
    assert ended.returncode == -signal.SIGTERM


def ending(path):
    path.mkdir()
    JobFolder(path).set(Flag.ENDING)
    return path


SECOND = """
import os, signal, time
from outlay.jobs.stop_request import listening
with listening():
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
"""


@pytest.mark.processes
def test_a_second_sigterm_ends_at_once():
    done = subprocess.run([sys.executable, "-c", SECOND], timeout=280, check=False)
    assert done.returncode == -signal.SIGTERM
