"""Process for process: two processes train a 4 x 1024 MLP over gloo, with Outlay and with PyTorch's DDP and FSDP2.

Every system has two processes of its own; they take turns, and each waits in silence while the others run.
"""

import argparse
import statistics
import subprocess
import sys
import time

from _pair import Pair
from _quiet import ALLOWED, OtherWork

STEPS = 4
CORES = 2
# Seconds that a comparison waits for a quiet machine in all.
PATIENCE = 600
# What is compared with what, and the highest ratio of their times that is well.
COMPARISONS = [
    ("DP, mode auto", ("auto", "dp"), "ddp", 1.0),
    ("DP, mode manual", ("manual", "dp"), "ddp", 1.0),
    ("FSDP, mode auto", ("auto", "fsdp"), "fsdp2", 0.5),
    ("FSDP, mode manual", ("manual", "fsdp"), "fsdp2", 0.5),
]


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--free", action="store_true", help="do not pin each process to a core of its own")
    options = parser.parse_args()
    torch_python = python_with_torch(options)
    cores = "as the system places them" if options.free else "each on a core of its own"
    print(f"2 processes for each system, {cores}; 4 x 1024 MLP, batch 64, Adam, gloo")
    pinned = not options.free
    torch_pairs = {name: Pair(torch_python, "_torch_worker.py", name, pinned=pinned) for name in ("ddp", "fsdp2")}
    for what, arguments, name, bar in COMPARISONS:
        pair = Pair(sys.executable, "_outlay_worker.py", *arguments, pinned=pinned)
        measure(what, pair, name, torch_pairs[name], bar, options.rounds)
        pair.stop()
    for pair in torch_pairs.values():
        pair.stop()


def measure(what, outlay_pair, torch_name, torch_pair, bar, rounds, *, busy=False):
    outlay_times, torch_times, num_disturbed = undisturbed(outlay_pair, torch_pair, rounds, busy)
    if not outlay_times:
        print(f"{what}: nothing measured, other work kept the machine busy", flush=True)
        return
    ratio = statistics.median(a / b for a, b in zip(outlay_times, torch_times, strict=True))
    verdict = "within" if ratio <= bar else "ABOVE"
    times = ", ".join(
        f"{name} {statistics.median(t) * 1e3:.1f} ms (least {min(t) * 1e3:.1f})"
        for name, t in (("outlay", outlay_times), (torch_name, torch_times))
    )
    others = "other work was counted too" if busy else f"{num_disturbed} more were disturbed"
    counts = f"{len(outlay_times)} rounds, {others}"
    print(f"{what}: {times}, ratio {ratio:.2f} ({verdict} the bar of {bar}; {counts})", flush=True)


def undisturbed(outlay_pair, torch_pair, rounds, busy):
    """Return the seconds per step of both in rounds without other work on the machine, and how many rounds had some.

    With `busy`, all rounds count.
    """
    outlay_times, torch_times, num_disturbed = [], [], 0
    pids = [process.pid for pair in (outlay_pair, torch_pair) for process in pair.processes]
    end = time.monotonic() + PATIENCE
    while len(outlay_times) < rounds and time.monotonic() < end:
        if not busy and not is_quiet(pids):
            continue
        work, start = OtherWork(pids), time.perf_counter()
        turns = [(outlay_pair, outlay_times), (torch_pair, torch_times)]
        for pair, times in turns if (len(outlay_times) + num_disturbed) % 2 else reversed(turns):
            before = time.perf_counter()
            pair.run(STEPS)
            times.append((time.perf_counter() - before) / STEPS)
        if not busy and work.seconds() > ALLOWED * CORES * (time.perf_counter() - start):
            outlay_times.pop(), torch_times.pop()
            num_disturbed += 1
    return outlay_times, torch_times, num_disturbed


def is_quiet(pids, seconds=0.3):
    """Return whether nothing else uses the machine for a moment."""
    work = OtherWork(pids)
    time.sleep(seconds)
    return work.seconds() <= ALLOWED * CORES * seconds


def parser_of(description):
    """Return a parser of what every comparison with torch is told."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--torch-python", help="a Python that has torch; this one when left out")
    parser.add_argument("--rounds", type=int, default=12, help="rounds of a comparison")
    return parser


def python_with_torch(options):
    """Return the Python that runs torch; exit where there is none."""
    python = options.torch_python or sys.executable
    if not has_torch(python):
        print(f"skipped: {python} has no torch; see benchmarks/README.md", file=sys.stderr)
        sys.exit(2 if options.torch_python else 0)
    return python


def has_torch(python):
    return subprocess.run([python, "-c", "import torch"], stderr=subprocess.DEVNULL).returncode == 0


if __name__ == "__main__":
    main()
