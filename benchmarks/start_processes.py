"""From the command to the end of two processes that compute one sum: `outlay launch`, and `jax.distributed` by hand.

What Outlay adds is the launcher, which never imports JAX, the meeting before JAX's own, and the table of who is who.
"""

import os
import socket
import subprocess
import sys
from pathlib import Path

from _timing import compare

BAR = 1.3
WORKER = str(Path(__file__).parent / "_started.py")
LAUNCH = [sys.executable, "-c", "from outlay.cli.main import main; main()", "launch", "-n", "2"]
ENVIRONMENT = os.environ | {"JAX_PLATFORMS": "cpu"}
SILENT = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def with_outlay():
    command = [*LAUNCH, "--devices-per-process", "1", "--", sys.executable, WORKER]
    subprocess.run(command, env=ENVIRONMENT, check=True, **SILENT)


def by_hand():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    commands = [[sys.executable, WORKER, str(rank), port] for rank in range(2)]
    processes = [subprocess.Popen(command, env=ENVIRONMENT, **SILENT) for command in commands]
    assert [process.wait() for process in processes] == [0, 0]


if __name__ == "__main__":
    with_outlay(), by_hand()  # so that all files are in the system's cache
    tested, reference, ratio = compare(with_outlay, by_hand, rounds=9, calls=1)
    verdict = "within" if ratio <= BAR else "ABOVE"
    times = f"outlay launch {tested:.2f} s, jax.distributed by hand {reference:.2f} s"
    print(f"start to end of 2 processes: {times}, ratio {ratio:.2f} ({verdict} the bar of {BAR})")
