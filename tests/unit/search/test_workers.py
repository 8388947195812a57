"""Real processes, of plain Python."""

import os
import sys
import threading
import time

import pytest

from outlay.search.workers import Workers

pytestmark = pytest.mark.processes


def workers(code: str, timeout: float = 60, num_processes: int = 1) -> Workers:
    return Workers(
        [sys.executable, "-c", f"import json, os, sys, time; job = json.loads(sys.argv[1])\n{code}"],
        num_processes,
        timeout,
    )


def test_the_answer_comes_back():
    ended = workers("print(json.dumps({'twice': 2 * job['x']}))").answer({"x": 3})
    assert ended.answer == {"twice": 6}
    assert not ended.timed_out


def test_a_process_sees_no_accelerator_and_its_share_of_the_cores(monkeypatch):
    monkeypatch.setattr("outlay.search.workers.num_cores", lambda: 8)
    code = "print(json.dumps({name: os.environ[name] for name in ('JAX_PLATFORMS', 'NPROC', 'OMP_NUM_THREADS')}))"
    answer = workers(code, num_processes=3).answer({}).answer
    assert answer == {"JAX_PLATFORMS": "cpu", "NPROC": "2", "OMP_NUM_THREADS": "2"}


def test_a_process_can_import_what_this_one_can(monkeypatch, tmp_path):
    (tmp_path / "only_here.py").write_text("VALUE = 7")
    monkeypatch.syspath_prepend(tmp_path)
    assert workers("import only_here; print(only_here.VALUE)").answer({}).answer == 7


def test_a_failure_is_told_by_its_exception_first_and_by_its_place(tmp_path):
    (tmp_path / "broken.py").write_text("def go(x):\n    return [one\n        for one in zip(x, [1], strict=True)]\n")
    code = (
        f"sys.path.insert(0, {str(tmp_path)!r}); print('noise\\n' * 9, file=sys.stderr); import broken; broken.go([])"
    )
    ended = workers(code).answer({})
    assert ended.answer is None
    exception, place = ended.failure.splitlines()
    assert exception == "ValueError: zip() argument 2 is longer than argument 1"
    assert place.startswith(f'File "{tmp_path / "broken.py"}", line ')


def test_a_failure_without_a_traceback_is_told_by_its_last_lines():
    ended = workers("print('line\\n' * 9, file=sys.stderr); os._exit(1)").answer({})
    assert ended.failure.splitlines() == ["line"] * 4


def test_a_silent_failure_gives_its_exit_code():
    assert workers("os._exit(3)").answer({}).failure == "it ended with exit code 3 and said nothing"


def test_a_killed_process_names_the_signal():
    ended = workers("os.kill(os.getpid(), 9)").answer({})
    assert ended.failure == "killed by SIGKILL: this machine may be out of memory; try --processes 1"


def test_a_process_that_takes_too_long_is_ended_with_its_children(tmp_path):
    code = f"""
child = os.fork()
if child:
    open({str(tmp_path / "child")!r}, 'w').write(str(child))
time.sleep(600)
"""
    ended = workers(code, timeout=10).answer({})
    assert ended.timed_out
    assert ended.failure == "stopped after 10 s"
    assert_gone(int((tmp_path / "child").read_text()))


def test_stopping_ends_what_runs_and_lets_nothing_start(tmp_path):
    running = workers(f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(600)")
    ended = []
    thread = threading.Thread(target=lambda: ended.append(running.answer({})))
    thread.start()
    wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    running.stop()
    thread.join(280)
    assert ended[0].answer is None
    with pytest.raises(RuntimeError, match="no job starts"):
        running.answer({})


def wait_for(condition) -> None:
    deadline = time.monotonic() + 280
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def assert_gone(pid: int) -> None:
    def has_ended() -> bool:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        with open(f"/proc/{pid}/stat") as stat:  # an orphan that nobody waits for stays as a zombie
            return stat.read().rpartition(")")[2].split()[0] == "Z"

    wait_for(has_ended)
