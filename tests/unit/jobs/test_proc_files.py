import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from outlay.jobs import proc_files
from outlay.jobs.proc_files import (
    MARK,
    end_marked,
    find,
    is_stopped,
    marked,
    namespace,
    send,
)

pytestmark = pytest.mark.processes

WAITS = "import threading; print(1, flush=True); lock = threading.Lock(); lock.acquire(); lock.acquire()"


@pytest.fixture
def start():
    started = []

    def make(mark, code=WAITS):
        variables = os.environ | ({MARK: mark} if mark else {})
        command = [sys.executable, "-S", "-c", code]
        process = subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, start_new_session=True)
        started.append(process)
        assert process.stdout.readline()
        return process

    yield make
    for process in started:
        process.kill()
        process.communicate()


def test_a_signal_reaches_processes_of_the_job_only(start):
    own, foreign = start("a1"), start("b2")
    assert not send(foreign.pid, signal.SIGKILL, "a1")
    assert send(own.pid, signal.SIGKILL, "a1")
    assert own.wait(280) == -signal.SIGKILL
    assert foreign.poll() is None
    assert not send(own.pid, signal.SIGKILL, "a1")


def test_a_process_is_found_by_its_own_number_only_if_it_is_of_the_job(start):
    own, foreign = start("a1"), start(None)
    assert find("a1", own.pid) == own.pid
    assert find("a1", foreign.pid) is None  # as where a container calls its process by the number of another one here


def test_all_of_a_job_end_and_of_a_job_inside_it_and_nobody_else(start):
    child = f"import subprocess, sys; subprocess.Popen([sys.executable, '-S', '-c', {WAITS!r}], start_new_session=True)"
    own, inner, foreign = start("a1", f"{child}\n{WAITS}"), start("a1 c3"), start("a12")
    deadline = time.monotonic() + 280
    while len(list(marked("a1"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    all_of_it = list(marked("a1"))
    assert len(all_of_it) == 3
    end_marked("a1")
    assert own.wait(280) == inner.wait(280) == -signal.SIGKILL
    assert foreign.poll() is None
    assert not [pid for pid in all_of_it if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]


def test_a_stopped_process_is_seen(start):
    process = start("a1")
    assert not is_stopped(process.pid)
    os.kill(process.pid, signal.SIGSTOP)
    deadline = time.monotonic() + 280
    while not is_stopped(process.pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert is_stopped(process.pid)


def test_processes_of_one_number_in_namespaces_of_their_own_are_told_apart(tmp_path, monkeypatch):
    """As in a container for each: a signal for one went to the other."""
    for pid, own in ((100, "pid:[4]"), (200, "pid:[5]")):
        (tmp_path / f"{pid}/ns").mkdir(parents=True)
        (tmp_path / f"{pid}/environ").write_text(f"A=b\0{MARK}=a1\0")
        (tmp_path / f"{pid}/status").write_text(f"Name:\tpython\nNSpid:\t{pid}\t2\n")
        (tmp_path / f"{pid}/ns/pid").symlink_to(own)
    (tmp_path / "self").symlink_to("100")
    monkeypatch.setattr(proc_files, "_PROC", tmp_path)
    assert namespace() == "pid:[4]"
    assert [find("a1", 2, "pid:[4]"), find("a1", 2, "pid:[5]"), find("a1", 2, "pid:[6]")] == [100, 200, None]
    assert find("a1", 2) in (100, 200)


def test_the_namespace_of_a_process_is_known_here():
    assert namespace().startswith("pid:[")
    assert find("", os.getpid(), namespace()) in (None, os.getpid())
