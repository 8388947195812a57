"""Weak scaling over processes: each trains on 64 samples a step, one process alone, and two together over gloo.

A process has one device, pinned to a core of its own. Efficiency is the time of a step of one process by that of two: 1
where exchanging gradients costs nothing.
"""

import statistics
import sys
import time

from _mlp import BATCH
from _pair import Pair

STEPS = 4
ROUNDS = 12
PROCESSES = (1, 2)


def main():
    print("4 x 1024 MLP, Adam, DP, gloo; each process on a core of its own")
    print("| mode | processes | samples a step | ms a step | samples/s | efficiency |\n|---|---|---|---|---|---|")
    for mode in ("auto", "manual"):
        jobs = {
            num: Pair(sys.executable, "_weak_worker.py", mode, str(num), pinned=True, num_processes=num)
            for num in PROCESSES
        }
        times = measure(jobs)
        for job in jobs.values():
            job.stop()
        for num, seconds in times.items():
            efficiency = statistics.median(one / several for one, several in zip(times[1], seconds, strict=True))
            step = statistics.median(seconds)
            print(
                f"| {mode} | {num} | {num * BATCH} | {step * 1e3:.1f} | {num * BATCH / step:.0f} | {efficiency:.2f} |",
                flush=True,
            )


def measure(jobs):
    """Return the seconds per step in each round, by number of processes; they take turns."""
    times = {num: [] for num in jobs}
    for round_number in range(ROUNDS):
        turns = list(jobs.items())
        for num, job in turns if round_number % 2 else reversed(turns):
            start = time.perf_counter()
            job.run(STEPS)
            times[num].append((time.perf_counter() - start) / STEPS)
    return times


if __name__ == "__main__":
    main()
