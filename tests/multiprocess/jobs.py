"""Jobs of real processes, started as a user starts them, and what is left of them afterwards."""

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

HERE = Path(__file__).parent
PROGRAM = str(HERE / "program.py")
OUTLAY = [sys.executable, "-c", "from outlay.cli.main import main; main()", "launch"]
LONGEST = 90  # seconds that a whole job may take on a busy machine; what is measured starts at the event


@dataclass(frozen=True)
class Done:
    """How a job ended.

    Attributes:
        seconds: from the event, as the program marked it, to the launcher's end.
        pids: of the processes that joined.
    """

    code: int
    stdout: str
    stderr: str
    seconds: float
    pids: list[int]


def start(*options: str, fault: str = "none", process: int = 0, mark: Path) -> subprocess.Popen[str]:
    program = [sys.executable, PROGRAM, fault, str(process), str(mark)]
    command = [*OUTLAY, "-n", "2", "--devices-per-process", "1", *options, "--", *program]
    environment = os.environ | {"PYTHONPATH": str(HERE.parents[1]), "TMPDIR": str(mark.parent)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def finish(job: subprocess.Popen[str], mark: Path, said: str = "") -> Done:
    try:
        stdout, stderr = job.communicate(timeout=LONGEST)
    except subprocess.TimeoutExpired:
        job.send_signal(signal.SIGTERM)
        stdout, stderr = job.communicate(timeout=10)
        raise AssertionError(f"the job hangs\n{stdout}\n{stderr}") from None
    seconds = time.time() - float(mark.read_text()) if mark.exists() else 0.0
    return Done(job.returncode, said + stdout, stderr, seconds, pids(stderr))


def run(*options: str, fault: str = "none", process: int = 0, mark: Path) -> Done:
    return finish(start(*options, fault=fault, process=process, mark=mark), mark)


def pids(stderr: str) -> list[int]:
    """The pids in the table of who is who."""
    return [int(row[1]) for row in re.findall(r"^ +(\d+)  \S+ +(\d+)  \d+ x cpu", stderr, re.MULTILINE)]


def left_of(mark: Path) -> list[psutil.Process]:
    """The processes of a job that are still there: all have the path of its mark on their command line."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        alive = process.info["status"] != psutil.STATUS_ZOMBIE
        if alive and str(mark) in (process.info["cmdline"] or []):
            found.append(process)
    return found
