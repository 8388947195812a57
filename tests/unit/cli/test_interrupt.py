"""Ctrl-C in processes of their own: while importing, in a callback that drops exceptions, twice, and in native code."""

import signal
import subprocess
import sys
import textwrap

import pytest

PROLOGUE = """
import ctypes, gc, os, signal, sys, textwrap, threading, time
from outlay.cli import interrupt
interrupt.answer()
press = lambda: os.kill(os.getpid(), signal.SIGINT)
"""


def ended(tmp_path, program: str) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "program.py"
    file.write_text(PROLOGUE + textwrap.dedent(program))
    command = [sys.executable, str(file)]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, cwd=tmp_path)


@pytest.mark.parametrize(
    ("program", "code", "stderr"),
    [
        pytest.param(
            """
            def swallow(phase, info):
                gc.callbacks.remove(swallow)
                press()
                time.sleep(0.2)
            gc.callbacks.append(swallow)
            try:
                gc.collect()
                time.sleep(60)
            except KeyboardInterrupt:
                print("raised again", file=sys.stderr)
                interrupt.leave(130)
            """,
            130,
            "raised again\n",
            id="dropped by a callback",
        ),
        pytest.param(
            """
            try:
                press()
                time.sleep(60)
            except KeyboardInterrupt:
                press()  # the same, by way of a parent process
                print("in order", file=sys.stderr)
                interrupt.leave(130)
            """,
            130,
            "in order\n",
            id="twice in a row",
        ),
        pytest.param(
            """
            interrupt.watch(patience=0.3)
            threading.Timer(0.3, press).start()
            lock = ctypes.create_string_buffer(64)
            for _ in range(2):  # the second time it waits for ever, without Python, as in a compiler
                ctypes.CDLL(None).pthread_mutex_lock(lock)
            """,
            130,
            "stopped\n",
            id="not heard of",
        ),
        pytest.param(
            """
            open("swallows.py", "w").write("from __main__ import press, time\\n" + textwrap.dedent('''
                try:
                    press()
                    time.sleep(0.3)
                except BaseException:
                    print("raised within", file=sys.stderr)
            '''))
            try:
                import swallows
                time.sleep(60)
            except KeyboardInterrupt:
                print("raised after it", file=sys.stderr)
                interrupt.leave(130)
            """,
            130,
            "raised after it\n",
            id="in an import that swallows it",
        ),
        pytest.param(
            """
            open("endless.py", "w").write("from __main__ import press, time\\npress()\\nwhile True: time.sleep(0.1)")
            import endless
            """,
            130,
            "stopped\n",
            id="in an import that does not end",
        ),
    ],
)
@pytest.mark.processes
def test_ctrl_c(tmp_path, program, code, stderr):
    done = ended(tmp_path, program)
    assert (done.returncode, done.stderr) == (code, stderr)


@pytest.mark.processes
def test_ctrl_c_while_imports_run(tmp_path):
    """The command is stopped as soon as it has begun, long before JAX is there."""
    command = [sys.executable, "-c", "from outlay.__main__ import main; print(flush=True); main()", "show", "digits"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout
        assert run.stderr
        run.stdout.readline()
        with pytest.raises(subprocess.TimeoutExpired):
            run.wait(0.3)
        run.send_signal(signal.SIGINT)
        assert run.stderr.read() == "stopped\n"
    assert run.returncode == 130
