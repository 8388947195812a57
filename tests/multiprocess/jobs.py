"""Jobs of real processes, started as a user starts them, and what is left of them afterwards."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
from tests import forks

HERE = Path(__file__).parent
PROGRAM = str(HERE / "program.py")
DIFFERING = str(HERE / "differing.py")
OUTLAY = [sys.executable, "-c", "from outlay.cli.main import main; main()", "launch"]
LONGEST = (
    120  # seconds after which a job hangs: the guard needs a few on a busy machine, JAX's own time-outs 100 to 300
)


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


def start(
    *options: str,
    fault: str = "none",
    process: int = 0,
    mark: Path,
    program: str = PROGRAM,
    stderr: int = subprocess.PIPE,
    environment: Mapping[str, str] | None = None,
    forked: bool = True,
) -> subprocess.Popen[str]:
    """Start a job whose processes are forks that have imported JAX, or, if not, such as users start."""
    started = [forks.python() if forked else sys.executable, program, fault, str(process), str(mark)]
    command = [*OUTLAY, "-n", "2", "--devices-per-process", "1", *options, "--", *started]
    variables = (
        os.environ
        | {"PYTHONPATH": f"{HERE.parents[1]}/src{os.pathsep}{HERE.parents[1]}", "TMPDIR": str(mark.parent)}
        | (environment or {})
    )
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=variables)


def finish(job: subprocess.Popen[str], mark: Path) -> Done:
    try:
        stdout, stderr = job.communicate(timeout=LONGEST)
    except subprocess.TimeoutExpired:
        job.send_signal(signal.SIGTERM)
        stdout, stderr = job.communicate(timeout=LONGEST)
        raise AssertionError(f"the job hangs\n{stdout}\n{stderr}") from None
    seconds = time.time() - float(mark.read_text()) if mark.exists() else 0.0
    return Done(job.returncode, stdout, stderr, seconds, pids(stderr))


def run(
    *options: str, fault: str = "none", process: int = 0, mark: Path, program: str = PROGRAM, forked: bool = True
) -> Done:
    """Run a job to its end, at which no process of it may be left; forks are killed by their server, a moment later."""
    job = start(*options, fault=fault, process=process, mark=mark, program=program, forked=forked)
    done = finish(job, mark)
    assert forked or not left_of(mark), "processes were left behind"
    return done


def pids(stderr: str) -> list[int]:
    """The pids in the table of who is who."""
    return [int(row[1]) for row in re.findall(r"^ +(\d+)  \S+ +(\d+)  \d+ x cpu", stderr, re.MULTILINE)]


def left_of(mark: Path) -> list[psutil.Process]:
    """The processes of a job that are still there: all have the path of its mark on their command line."""
    left = []
    for process in psutil.process_iter(["cmdline", "status"]):
        alive = process.info["status"] != psutil.STATUS_ZOMBIE
        if alive and str(mark) in (process.info["cmdline"] or []):
            left.append(process)
    return left
