import os
import subprocess
import sys

import pytest

from outlay.jobs.deadlock import collect_stacks, waits_for_others, waits_outside_python
from outlay.jobs.job_folder import JobFolder, JoinedProcess
from outlay.jobs.proc_files import MARK

pytestmark = pytest.mark.processes

OTHER = 'Thread 0x01 (most recent call first):\n  File "/usr/lib/python3.12/threading.py", line 3 in wait\n\n'


@pytest.mark.parametrize(
    ("innermost", "waits"),
    [
        ("/home/me/train.py", True),
        ("/home/me/.venv/lib/python3.12/site-packages/jax/_src/array.py", True),
        ("/usr/lib/python3.12/threading.py", False),
        ("/usr/lib/python3.12/subprocess.py", False),
    ],
)
def test_where_the_main_thread_waits(innermost, waits):
    main = (
        f'Current thread 0x02 (most recent call first):\n  File "{innermost}", line 1 in f\n  File "/t.py", line 2 in g'
    )
    assert waits_outside_python(OTHER + main) is waits


def test_no_frames_are_no_sign():
    assert not waits_outside_python("")


def test_who_waits_for_a_callback_does_not_wait_for_others():
    main = 'Current thread 0x02 (most recent call first):\n  File "/site-packages/jax/_src/array.py", line 1 in _value'
    callback = (
        'Thread 0x03 (most recent call first):\n  File "/home/me/train.py", line 3 in remote\n'
        '  File "/site-packages/jax/_src/callback.py", line 9 in _callback\n\n'
    )
    assert waits_for_others(OTHER + main)
    assert not waits_for_others(callback + main)


SLOW = """
import signal, sys, time

def answer(*_):
    with open(sys.argv[1], "w", buffering=1) as stacks:
        stacks.write("Thread 0x01 (most recent call first):\\n  File 'a.py', line 1 in reader\\n\\n")
        time.sleep(1.2)
        stacks.write("Current thread 0x02 (most recent call first):\\n  File 'a.py', line 2 in train\\n")

signal.signal(signal.SIGUSR1, answer)
print(flush=True)
while True:
    time.sleep(1)
"""


def test_stacks_are_whole_even_if_a_busy_machine_writes_them_in_pieces(tmp_path):
    folder = JobFolder(tmp_path, "of-this-test")
    path = folder.stacks_path(0)
    environment = {**os.environ, MARK: folder.mark}
    with subprocess.Popen([sys.executable, "-c", SLOW, str(path)], stdout=subprocess.PIPE, env=environment) as process:
        try:
            assert process.stdout
            process.stdout.readline()
            folder.write_joined(JoinedProcess(0, 1, "host", process.pid, [], "a:1", {}))
            assert "in train" in collect_stacks(folder, [0])[0]
        finally:
            process.kill()
