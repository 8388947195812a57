import os
import subprocess
import sys

import pytest

from outlay.jobs.job_folder import JobFolder, JoinedProcess
from outlay.jobs.proc_files import MARK
from outlay.launcher.stacks import collect_stacks

pytestmark = pytest.mark.processes

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
