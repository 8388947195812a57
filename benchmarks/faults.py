"""Tabulate what happens to a job of two processes when something dies: what is seen, and how soon all have ended.

Real processes, real signals, a disk that is really full. It fails where an event is not named, all have not ended 10 s
after it (and after the time-out, where there is one), a process is left behind, or a checkpoint is lost. And healthy
jobs that look ill: it fails where one of them does not end well.
"""

import argparse
import contextlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # whose tests have the programs that fail
from kill_during_save import SAVER, Saver
from tests.multiprocess import jobs

from outlay.jobs.stall import TOGETHER

BAR = 10.0
STUCK_AFTER, MISSING_AFTER = 8, 3
OUTLAY = [sys.executable, "-c", "from outlay.cli.main import main; main()"]


@dataclass(frozen=True)
class Seen:
    """What was seen after an event.

    Attributes:
        text: all that was said.
        code: what the launcher ended with.
        seconds: until all had ended, without time-outs.
        lost: of what was saved.
    """

    text: str
    code: int
    seconds: float
    lost: str = "what was not saved"


def in_a_step(fault, process, *options, after=0.0, program=jobs.PROGRAM):
    """Return a fault that a process has by itself, between two steps."""

    def happen(mark):
        done = jobs.run(*options, fault=fault, process=process, mark=mark, program=program)
        return Seen(done.stdout + done.stderr, done.code, done.seconds - after)

    return happen


def healthy(fault, *options):
    """Return what looks like a fault and is not: the job ends well, however long it takes."""

    def happen(mark):
        done = jobs.run(*options, fault=fault, process=1, mark=mark)
        return Seen(done.stdout + done.stderr, done.code, 0.0, "nothing")

    return happen


def suspended(mark):
    """Suspend the launcher and all processes for longer than any of them may be silent, and let them go on."""
    job = jobs.start("--stuck-after", str(STUCK_AFTER), "--start-within", "off", fault="talk-long", mark=mark)
    first = job.stdout.readline()
    everyone = jobs.left_of(mark)
    for process in everyone:
        process.suspend()
    time.sleep(STUCK_AFTER + 4)
    for process in everyone:
        process.resume()
    stdout, stderr = job.communicate(timeout=jobs.LONGEST)
    return Seen(first + stdout + stderr, job.returncode, 0.0, "nothing")


def signal_to_launcher(number):
    def happen(mark):
        job = jobs.start(fault="endless", mark=mark)
        job.stdout.readline()
        start = time.monotonic()
        job.send_signal(number)
        _, text = job.communicate(timeout=60)
        while jobs.left_of(mark) and time.monotonic() < start + BAR:
            time.sleep(0.02)
        return Seen(text, job.returncode if job.returncode >= 0 else 128 - job.returncode, time.monotonic() - start)

    return happen


def missing(mark):
    start = time.monotonic()
    done = jobs.run(fault="missing", process=1, mark=mark)
    return Seen(done.stderr, done.code, time.monotonic() - start - MISSING_AFTER, "nothing")


def port_taken(mark):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        start = time.monotonic()
        done = jobs.run("--port", str(taken.getsockname()[1]), mark=mark)
        return Seen(done.stderr, done.code, time.monotonic() - start, "nothing")


def killed_while_saving(mark):
    saver = Saver(mark, 2)
    saver.wait_for_first()
    while saver.saving == saver.saved:
        time.sleep(0.001)
    start = time.monotonic()
    saver.kill_one(1)
    seconds = time.monotonic() - start
    lost = checkpoints_lost(mark, saver.saved)
    return Seen(saver.log.read_text(), saver.process.returncode, seconds, lost)


def disk_full(mark):
    mark.mkdir()
    job = " ".join([*map(repr, OUTLAY), "launch -n 2 --devices-per-process 1 --", sys.executable, str(SAVER), "$0"])
    script = f"mount -t tmpfs -o size=8m tmpfs $0 && {{ {job}; code=$?; ls $0 | sed 's/^/there: /'; exit $code; }}"
    process = subprocess.Popen(
        ["unshare", "--user", "--map-root-user", "--mount", "bash", "-c", script, str(mark)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    saving, there = time.monotonic(), []
    saved = 0
    for line in process.stdout:
        if " saving " in line:
            saving = time.monotonic()
        elif " saved " in line:
            saved = int(line.split()[-1])
        elif line.startswith("there: "):
            there.append(line.split()[-1])
    text = process.stderr.read()
    seconds = time.monotonic() - saving
    lost = "nothing that was saved" if saved and str(saved) in there else f"step {saved} LOST, there is {there}"
    return Seen(text, process.wait(), seconds, lost)


def truncated(mark):
    """Damage the newest checkpoint while nothing runs."""
    saver = Saver(mark, 1)
    while saver.saved < 2:
        saver.wait_for_first()
        time.sleep(0.05)
    saver.kill_one()
    newest = max((path for path in mark.iterdir() if path.name.isdecimal()), key=lambda path: int(path.name))
    data = max((path for path in newest.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    with data.open("r+b") as file:
        file.truncate(data.stat().st_size // 2)
    start = time.monotonic()
    shown = subprocess.run([*OUTLAY, "checkpoint", "show", str(mark)], capture_output=True, text=True, check=False)
    seconds = time.monotonic() - start
    after = Saver(mark, 2)
    after.wait_for_first()
    after.kill_one()
    text = shown.stdout + shown.stderr + after.log.read_text()
    before = int(newest.name) - 1
    lost = "that checkpoint; the one before is restored" if after.restored == before else f"{before} LOST"
    return Seen(text, shown.returncode, seconds, lost)


def checkpoints_lost(folder, saved):
    done = subprocess.run([*OUTLAY, "checkpoint", "show", str(folder), "--step", str(saved)], capture_output=True)
    return "nothing that was saved" if done.returncode == 0 else f"step {saved} LOST"


DIFFERENT = "the processes are about to run different things"
FULL = r"(CheckpointError: the checkpoint of step \d+ could not be written).*(No space left on device)"
KILLED = "process {} of 2 failed first: ended by SIGKILL, by somebody or by the system for want of memory"
STOPPED = "stopped by {}: all processes ended"
EVENTS = [
    ("an exception in process 0", in_a_step("exception", 0), "ValueError: a planted mistake"),
    ("an exception in process 1", in_a_step("exception", 1), "ValueError: a planted mistake"),
    ("SIGKILL of process 0, the coordinator", in_a_step("SIGKILL", 0), KILLED.format(0)),
    ("SIGKILL of process 1", in_a_step("SIGKILL", 1), KILLED.format(1)),
    ("`exit(0)` in process 0, too early", in_a_step("early", 0), "process 0 of 2 ended early, while the others wait"),
    ("`exit(0)` in process 1, too early", in_a_step("early", 1), "process 1 of 2 ended early, while the others wait"),
    (
        "SIGSTOP of process 1, after the time-out",
        in_a_step("SIGSTOP", 1, "--stuck-after", str(STUCK_AFTER), "--start-within", "off", after=STUCK_AFTER),
        r"process 1: step 3 finished.*held by a signal \(SIGSTOP\)",
    ),
    (
        "SIGSTOP of process 1, no option, after a minute",
        in_a_step("SIGSTOP", 1, after=TOGETHER),
        r"process 1.*held by a signal \(SIGSTOP\)",
    ),
    (
        "an endless loop in process 1, after the time-out",
        in_a_step("spin", 1, "--stuck-after", str(STUCK_AFTER), "--start-within", "off", after=STUCK_AFTER),
        "waiting in JAX, as for a collective: process 0; not there: process 1",
    ),
    (
        "`exit(0)` in process 1 before it joins, with start",
        in_a_step("never", 1, after=BAR),
        "process 1 of 2 ended, with exit code 0, before",
    ),
    ("healthy: data stall for 70 s, no option", healthy("stall"), "process 1 of 2: total"),
    ("healthy: process 1 uploads after the last step", healthy("upload"), "the other end says b'done'"),
    ("healthy: process 1 works on after the last step", healthy("harmless"), "slept well"),
    ("healthy: all are suspended for a while", suspended, "process 1 of 2: total"),
    ("the port is taken, from the start", port_taken, r"port \d+ cannot be used for the coordinator"),
    ("process 1 does not come, start and time-out", missing, "1 of 2 processes have not come to"),
    ("another program in process 1", in_a_step("program", 1, program=jobs.DIFFERING), DIFFERENT),
    ("data of another shape in process 1", in_a_step("data", 1, program=jobs.DIFFERING), DIFFERENT),
    ("another layout in process 1", in_a_step("config", 1, program=jobs.DIFFERING), DIFFERENT),
    ("the disk is full while saving", disk_full, FULL),
    ("SIGKILL of process 1 while saving", killed_while_saving, KILLED.format(1)),
    ("a file of the newest checkpoint is truncated", truncated, r"[^/\n]+ has \d+ bytes of \d+"),
    ("Ctrl-C", signal_to_launcher(signal.SIGINT), STOPPED.format("SIGINT")),
    ("SIGTERM of the launcher", signal_to_launcher(signal.SIGTERM), STOPPED.format("SIGTERM")),
    ("SIGKILL of the launcher", signal_to_launcher(signal.SIGKILL), ""),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="the events whose name has this in it")
    parser.add_argument("--rounds", type=int, default=1, help="how often each event happens")
    options = parser.parse_args()
    print("| event | what is said | exit code | seconds until all have ended | what is lost |\n|---|---|---|---|---|")
    good = [row(*event, options.rounds) for event in EVENTS if options.only in event[0]]
    sys.exit(not all(good))


def row(event, happen, says, rounds):
    """Let an event happen and print what is seen; return whether that is as it must be."""
    times, problems = [], []
    for _ in range(rounds):
        folder = Path(tempfile.mkdtemp(prefix="outlay-"))
        mark = folder / "mark"
        try:
            seen = happen(mark)
            left = jobs.left_of(mark)
            for process in left:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
        finally:
            shutil.rmtree(folder)
        times.append(seen.seconds)
        match = re.search(says, seen.text)
        problems += [f"{len(left)} LEFT BEHIND"] if left else []
        problems += [] if match else [f"NOT SAID, but {seen.text[-2000:]}"]
        problems += [] if seen.seconds < BAR else ["TOO LATE"]
        problems += ["NOT WELL"] if event.startswith("healthy") and seen.code else []
        problems += ["LOST"] if "LOST" in seen.lost else []
    message = " ... ".join(match.groups() or [match[0]]) if match else ""
    seconds = f"{min(times):.1f}" if rounds == 1 else f"{min(times):.1f} to {max(times):.1f}"
    print(f"| {event} | {message or 'nothing'} | {seen.code} | {seconds} | {seen.lost} |", flush=True)
    for problem in problems:
        print(f"{event}: {problem}", file=sys.stderr)
    return not problems


if __name__ == "__main__":
    main()
