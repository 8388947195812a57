"""Process for process: two processes train a 4 x 1024 MLP over gloo, with Outlay and with PyTorch's DDP and FSDP2.

Every system has two processes of its own; they take turns, and each waits in silence while the others run.
"""

import argparse
import subprocess
import sys

from _pair import Pair
from _timing import compare

STEPS = 4
# What is compared with what, and the highest ratio of their times that is well.
COMPARISONS = [
    ("DP, mode auto", ("auto", "dp"), "ddp", 1.0),
    ("DP, mode manual", ("manual", "dp"), "ddp", 1.0),
    ("FSDP, mode auto", ("auto", "fsdp"), "fsdp2", 0.5),
    ("FSDP, mode manual", ("manual", "fsdp"), "fsdp2", 0.5),
]
# glibc gives large blocks back to the system when they are freed and takes them anew at each step, page by page.
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**32), "MALLOC_TRIM_THRESHOLD_": str(2**33)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch-python", help="a Python that has torch; this one when left out")
    parser.add_argument("--rounds", type=int, default=12, help="rounds of a comparison")
    parser.add_argument("--free", action="store_true", help="do not pin each process to a core of its own")
    parser.add_argument("--keep-memory", action="store_true", help="let malloc keep freed memory, on both sides")
    options = parser.parse_args()
    torch_python = options.torch_python or sys.executable
    if not has_torch(torch_python):
        print(f"skipped: {torch_python} has no torch; see benchmarks/README.md", file=sys.stderr)
        sys.exit(2 if options.torch_python else 0)
    cores = "as the system places them" if options.free else "each on a core of its own"
    memory = "malloc keeps freed memory" if options.keep_memory else "malloc as it comes"
    print(f"2 processes for each system, {cores}; {memory}; 4 x 1024 MLP, batch 64, Adam, gloo")
    how = {"pinned": not options.free, "environment": KEEP_MEMORY if options.keep_memory else {}}
    theirs = {name: Pair(torch_python, "_torch_worker.py", name, **how) for name in ("ddp", "fsdp2")}
    for what, ours, other, bar in COMPARISONS:
        pair = Pair(sys.executable, "_outlay_worker.py", *ours, **how)
        measure(what, pair, other, theirs[other], bar, options.rounds)
        pair.stop()
    for pair in theirs.values():
        pair.stop()


def measure(what, ours, other_name, other, bar, rounds):
    mine, its, ratio = compare(lambda: ours.run(STEPS), lambda: other.run(STEPS), rounds=rounds, calls=1)
    verdict = "within" if ratio <= bar else "ABOVE"
    times = f"outlay {mine / STEPS * 1e3:.1f} ms, {other_name} {its / STEPS * 1e3:.1f} ms"
    print(f"{what}: {times}, ratio {ratio:.2f} ({verdict} the bar of {bar})", flush=True)


def has_torch(python):
    return subprocess.run([python, "-c", "import torch"], stderr=subprocess.DEVNULL).returncode == 0


if __name__ == "__main__":
    main()
