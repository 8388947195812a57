"""A Brain's file by Outlay, a compiled loop on one device, against Spark.

Spark 0.1.0 runs the file itself, a step compiled by `jit`. Its newest release cannot read the file and runs the same
model in its own compiled loop. Each needs an environment of its own, see the README:
`brain_spark.py --spark-python .venv-spark/bin/python --newest-spark-python .venv-newest-spark/bin/python`.
"""

import argparse
import dataclasses
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import numpy as np

import outlay
from outlay.brain.fast_cpu.deferred_neuron import fast_graph
from outlay.brain.run.brain_recipe import FAST_CPU, KERNELS

outlay.simulate(1)

HERE = Path(__file__).parent
MODEL = HERE.parent / "tests/data/example_ab_model.scfg"
BAR = 20.0
OUR_STEPS, THEIR_STEPS, NUM_ROUNDS = 1000, 200, 7


class Spark:
    """Spark's side, in a process of its own that runs a round whenever it is asked to."""

    def __init__(self, python: str, worker: str, *options: str) -> None:
        self._process = subprocess.Popen(
            [python, str(HERE / worker), str(MODEL), str(THEIR_STEPS), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Its JAX is older and does not know the flags that simulated devices set.
            env={name: value for name, value in os.environ.items() if name != "XLA_FLAGS"} | {"JAX_PLATFORMS": "cpu"},
        )
        self._line_of("ready")

    def seconds(self) -> tuple[float, float]:
        """Of a step: by the clock, and of the processor."""
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        took, spent = self._line_of().split()
        return float(took), float(spent)

    def stop(self) -> None:
        self._process.stdin.close()
        self._process.wait(60)

    def _line_of(self, expected: str = "") -> str:
        for line in self._process.stdout:
            if not expected or line.strip() == expected:
                return line
        sys.exit(f"Spark's side ended with exit code {self._process.wait()}: see what it printed")


class Ours:
    """Our side: a graph loop of many steps is one call."""

    def __init__(self, kernel: str, dtype: str = "float16") -> None:
        self.name = f"outlay, {kernel} kernel,"
        brain = dataclasses.replace(outlay.brain.read_brain(MODEL), dtype=dtype)
        graph = fast_graph(brain, brain.graph) if kernel == FAST_CPU else brain.graph
        self._inputs = {"drive": np.tile(np.sin(np.arange(4.0, dtype=np.float32)), (OUR_STEPS, 1))}
        layout = outlay.Layout([("**", outlay.replicate()), ("batch.**", outlay.replicate())])
        mesh = outlay.mesh("one=1")
        self._program = outlay.program(
            outlay.graph.GraphLoop(graph), brain.init, self._inputs, layout=layout, mesh=mesh
        )
        self.state = self._program.init(jax.random.key(0))
        self.seconds()  # which compiles

    def seconds(self) -> tuple[float, float]:
        """Of a step: by the clock, and of the processor."""
        start, spent = time.perf_counter(), time.process_time()
        self.state, _ = jax.block_until_ready(self._program(self.state, self._inputs))
        return (time.perf_counter() - start) / OUR_STEPS, (time.process_time() - spent) / OUR_STEPS


def limit_seconds(state) -> float:
    """The time to read and write once what changes in every step, and to read the delays, at the speed of a copy."""
    sizes = {"kernel": 2, "target_trace": 2, "delays": 1}
    leaves = [leaf for leaf in jax.tree_util.tree_leaves_with_path(state) if leaf[0][-1].key in sizes]
    moved = sum(sizes[path[-1].key] * leaf.nbytes for path, leaf in leaves if leaf.ndim == 2)
    source, copy = np.ones(moved // 2, np.uint8), np.empty(moved // 2, np.uint8)  # a copy reads and writes each byte
    took = []
    for _ in range(50):
        start = time.perf_counter()
        np.copyto(copy, source)
        took.append(time.perf_counter() - start)
    return statistics.median(took)


def seconds_by_hand() -> tuple[float, float] | None:
    """Of the passes over pairs alone, in C++, on one core and on two; None where they cannot be compiled and run."""
    compiler, processor = shutil.which("g++"), Path("/proc/cpuinfo")
    if not compiler or not processor.exists() or "avx512bw" not in processor.read_text():
        return None
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "by_hand"
        options = ["-O3", "-march=native", "-std=c++17", "-pthread"]
        subprocess.run([compiler, *options, str(HERE / "_brain_by_hand.cc"), "-o", str(program)], check=True)
        one, two = subprocess.run([program], check=True, capture_output=True, text=True).stdout.split()
    return float(one) / 1e6, float(two) / 1e6


def compare(name: str, ours: Ours, spark: Spark, bar: float | None = None) -> None:
    """Rounds of both in turn, so that what else the machine does meets both; the quickest of each counts."""
    mine, theirs = [], []
    for _ in range(NUM_ROUNDS):
        mine.append(ours.seconds())
        theirs.append(spark.seconds())
    for clock, what in enumerate(("by the clock", "of the processor")):
        own, other = ([seconds[clock] for seconds in both] for both in (mine, theirs))
        # Another program's turn lengthens both kinds of time, and shortens none.
        best, rival = min(own), min(other)
        ratio = rival / best
        verdict = "" if bar is None or clock else f" ({'within' if ratio >= bar else 'BELOW'} the bar of {bar:g}x)"
        times = f"{ours.name} {1e3 * best:.3f} ms a step {what}, {name} {1e3 * rival:.3f} ms"
        print(f"{MODEL.name}: {times}, {ratio:.1f}x as fast{verdict}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spark-python", help="the Python of an environment with Spark 0.1.0")
    parser.add_argument("--newest-spark-python", help="the Python of an environment with Spark 1.2.2")
    given = parser.parse_args()
    ours = [Ours(kernel) for kernel in KERNELS]
    if given.spark_python:
        spark = Spark(given.spark_python, "_spark_worker.py")
        for each in ours:
            compare("Spark 0.1.0", each, spark, BAR)
        spark.stop()
    else:
        print("Spark is not measured: --spark-python PATH, see the README")
    if given.newest_spark_python:
        for dtype in ("float16", "float32"):
            spark = Spark(given.newest_spark_python, "_spark_newest_worker.py", dtype)
            for kernel in KERNELS:
                compare(f"Spark 1.2.2 in its own loop, {dtype},", Ours(kernel, dtype), spark)
            spark.stop()
    for each in ours:
        compare_with_limits(each)


def compare_with_limits(ours: Ours) -> None:
    """How far a step is from what must move through memory, and from its passes by hand."""
    spent, limit = min(ours.seconds()[0] for _ in range(NUM_ROUNDS)), limit_seconds(ours.state)
    print(
        f"{ours.name} a step takes {spent / limit:.1f}x what moving kernels, target traces and delays through memory "
        f"once takes ({1e6 * limit:.0f} us)"
    )
    by_hand = seconds_by_hand()
    if not by_hand:
        print("the passes by hand are not measured: they need g++ and a processor with AVX-512")
        return
    one, two = by_hand
    print(
        f"and {spent / two:.1f}x what its passes over pairs alone take by hand in C++ ({1e6 * one:.0f} us on one core, "
        f"{1e6 * two:.0f} us on two)"
    )


if __name__ == "__main__":
    main()
