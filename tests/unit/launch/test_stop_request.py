import os
import signal

import pytest

from outlay.launch import exits, stop_request, variables
from outlay.launch.job_folder import JobFolder
from outlay.launch.stop_request import Stopped, is_requested, listen


@pytest.fixture(autouse=True)
def not_asked(monkeypatch):
    monkeypatch.setattr(stop_request, "_is_requested", False)
    monkeypatch.setattr(stop_request, "_folder", None)
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGUSR1, before)


def test_the_signal_asks_for_a_stop():
    listen()
    assert not is_requested()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert is_requested()


def test_under_the_launcher_the_signal_asks_for_stacks_and_the_launcher_for_a_stop(monkeypatch, tmp_path):
    monkeypatch.setenv(variables.JOB_DIR, str(tmp_path))
    folder = JobFolder(tmp_path)
    assert not folder.has_listeners()
    listen()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert folder.has_listeners()
    assert not is_requested()
    folder.ask_to_stop()
    assert is_requested()


def test_a_stop_ends_the_program_with_its_own_code(monkeypatch):
    monkeypatch.setattr(exits, "_ending", None)
    stopped = Stopped("stopped after step 3")
    assert isinstance(stopped, SystemExit)
    assert (stopped.code, str(stopped)) == (75, "stopped after step 3")
