"""Kill a process that saves checkpoints, at many random moments, and see that none is lost.

After each kill new processes take over. They restore the newest checkpoint, whose bytes and numbers must be right,
and it must be the last that was announced as saved, or the one that was being saved. Exit code 1 where it is not.
"""

import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

SAVER = Path(__file__).parent / "_saver.py"
LAUNCH = [sys.executable, "-c", "from outlay.cli.main import main; main()", "launch", "--devices-per-process", "1"]
SECONDS = 1.0  # in which a kill comes, after the first checkpoint of new processes
PATIENCE = 120


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--processes", type=int, default=1, help="that save together; one of them is killed")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="outlay-"))
    try:
        lost = kill_again_and_again(folder / "checkpoints", options.kills, options.processes)
    finally:
        shutil.rmtree(folder)
    sys.exit(bool(lost))


def kill_again_and_again(folder, num_kills, num_processes):
    """Return what was lost or wrong, one line each."""
    num_halfway, num_partial, lost = 0, 0, []
    saver = Saver(folder, num_processes)
    for number in range(num_kills):
        saver.wait_for_first()
        time.sleep(random.uniform(0, SECONDS))
        saver.kill_one(number % num_processes)
        num_halfway += saver.saving > saver.saved
        num_partial += any(folder.glob("*.partial"))
        before, saver = saver, Saver(folder, num_processes)
        saver.wait_for_first()
        lost += wrong(before, saver)
    saver.kill_one()
    for line in lost:
        print(line)
    verdict = "none lost" if not lost else f"{len(lost)} LOST OR WRONG"
    print(
        f"{num_kills} kills of one of {num_processes} processes, {num_halfway} while a checkpoint was being saved, "
        f"{num_partial} leaving a half-written one: {saver.saved} checkpoints saved, {verdict}"
    )
    return lost


def wrong(before, after):
    """Yield what is wrong with the checkpoints after a kill, one line each."""
    saved, saving = before.saved, before.saving
    if after.restored not in range(saved, saving + 1):
        yield f"restored {after.restored}; {saved} was saved last, {saving} was being saved"
    if not after.holds:
        yield f"the checkpoint of step {after.restored} holds other numbers than were saved"
    if missing := {saved - 1, saved} - {0, *after.there}:
        yield f"of the steps that were saved, {sorted(missing)} are gone; {after.there} are there"


class Saver:
    """Processes that save together, and what they have reported."""

    def __init__(self, folder, num_processes):
        command = [sys.executable, str(SAVER), str(folder)]
        if num_processes > 1:
            command = [*LAUNCH, "-n", str(num_processes), "--", *command]
        self.num_processes = num_processes
        self.pids, self.there = {}, []
        self.saving = self.saved = self.restored = 0
        self.holds = True
        self.first = threading.Event()
        self.log = folder.with_name("log")
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            rank, word, number, rest = re.fullmatch(r"(?:\[(\d+)\] )?(\w+) (\d+)(.*)\n", line).groups()
            if word == "pid":
                self.pids[int(rank or 0)] = int(number)
            elif word == "restored":
                self.restored = self.saved = self.saving = int(number)
                self.holds = "holding True" in rest
                self.there = [int(step) for step in re.findall(r"\d+", rest)]
            elif word == "saving":
                self.saving = int(number)
            elif word == "saved":
                self.saved = int(number)
                self.first.set()
        self.first.set()  # or nobody would see that it has ended

    def wait_for_first(self):
        """Wait until it has saved a checkpoint."""
        has_saved = self.first.wait(PATIENCE)
        if not has_saved or self.process.poll() is not None:
            self.process.kill()
            raise RuntimeError(f"no checkpoint was saved in {PATIENCE} s\n{self.log.read_text()}")

    def kill_one(self, rank=None):
        """Kill one of its processes, any one by default, and wait until all have ended."""
        os.kill(self.pids[random.randrange(self.num_processes) if rank is None else rank], signal.SIGKILL)
        self.process.wait(PATIENCE)
        self.reader.join()


if __name__ == "__main__":
    main()
