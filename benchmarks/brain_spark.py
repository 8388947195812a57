"""A Brain's file by Outlay, a compiled loop on one device, against Spark, on one core and on two.

Spark 0.1.0 runs the file itself, a step compiled by `jit`. Its newest release cannot read the file and runs the same
model in its own compiled loop. Each needs an environment of its own, see the README:
`brain_spark.py --spark-python .venv-spark/bin/python --newest-spark-python .venv-newest-spark/bin/python`.

The model of the file, and what it becomes with other numbers, no plasticity, few spikes and more units. All sides run
in processes of their own, which take turns round by round, so that what else the machine does meets all of them.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
MODEL = HERE.parent / "packages/outlay-brain/brain_tests/data/example_ab_model.scfg"
JAX, FAST, SPARK, NEWEST = "plain JAX", "fast-cpu", "Spark 0.1.0", "Spark 1.2.2"
BARS = {SPARK: {1: 10.0, 2: 18.0}, NEWEST: {1: 4.0, 2: 7.0}}
"""How many times as fast as each `fast-cpu` is to be, on so many cores."""
NUM_ROUNDS, STEPS = 7, {JAX: 1000, FAST: 1000, SPARK: 200, NEWEST: 200}
UNITS = 256
A_CYCLE = 2
"""Vector instructions of 512 bits that a processor begins in a cycle, besides loads and stores."""


@dataclass(frozen=True)
class Case:
    """What is changed of the model.

    Attributes:
        name: what is changed.
        dtype: of its numbers.
        plastic: whether it learns.
        resistance: of each soma, GOhm/ms, which decides how many spike.
        learning: by which learning rates are multiplied: with those of the file kernels grow until many neurons spike.
        units: of an excitatory population; an inhibitory one has a quarter.
        share: of the usual steps that a round has.
        rivals: those that can run it.
    """

    name: str
    dtype: str = "float32"
    plastic: bool = True
    resistance: float = 100.0
    learning: float = 1.0
    units: int = UNITS
    share: float = 1.0
    rivals: tuple[str, ...] = (NEWEST,)

    def write(self, path: Path) -> None:
        """Write the file with these changes."""
        model = json.loads(MODEL.read_text().replace('"float16"', f'"{self.dtype}"'))
        for spec in model["__cfg__"]["modules_map"].values():
            config = spec["__data__"]["config"]
            if "soma" in config:
                config["soma"]["resistance"] = self.resistance
                config["learning_rule"]["gamma"] *= self.learning
                units = [config["units"][0] * self.units // UNITS]
                config["units"] = config["synapses"]["units"] = config["delays"]["units"] = units
        path.write_text(json.dumps(model))


CASES = (
    Case("the file, float16", dtype="float16", rivals=(SPARK, NEWEST)),
    Case("float32", rivals=(SPARK, NEWEST)),
    Case("few spikes", resistance=0.5, learning=1e-3, rivals=(SPARK, NEWEST)),
    # Without a rule Spark 0.1.0 has no delays either.
    Case("no plasticity", plastic=False),
    Case("512 units", units=512, share=0.4),
    Case("1,024 units", units=1024, share=0.1),
    Case("2,048 units", units=2048, share=0.03),
)


class Side:
    """One side, in a process of its own on so many cores."""

    def __init__(self, python: str, script: str, num_cores: int, *options: str) -> None:
        cores = sorted(os.sched_getaffinity(0))[-num_cores:]
        self._process = subprocess.Popen(
            [python, str(HERE / script), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | {"JAX_PLATFORMS": "cpu"},
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )
        self.answer()

    def ask(self, name: str, **arguments) -> None:
        print(json.dumps([name, arguments]), file=self._process.stdin, flush=True)

    def answer(self):
        for line in self._process.stdout:
            if line.startswith("answer "):
                return json.loads(line.removeprefix("answer "))
        sys.exit(f"{self._process.args[1]} ended with exit code {self._process.wait()}: run it by hand to see why")

    def stop(self) -> None:
        self._process.stdin.close()
        self._process.wait(60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spark-python", help="the Python of an environment with Spark 0.1.0")
    parser.add_argument("--newest-spark-python", help="the Python of an environment with Spark 1.2.2")
    parser.add_argument("--only", help="a case's name, to measure no other")
    options = parser.parse_args()
    pythons = {SPARK: options.spark_python, NEWEST: options.newest_spark_python}
    for name, python in pythons.items():
        if not python:
            print(f"{name} is not measured: --{'newest-' if name == NEWEST else ''}spark-python PATH, see the README")
    print(f"load before: {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores")
    scripts = {SPARK: "_spark_worker.py", NEWEST: "_spark_newest_worker.py"}
    sides = {}
    for num in (1, 2):
        for kernel, option in ((JAX, "jax"), (FAST, "fast-cpu")):
            sides[kernel, num] = Side(sys.executable, "_brain_worker.py", num, option)
        for name, python in pythons.items():
            if python:
                sides[name, num] = Side(python, scripts[name], num)
    for case in CASES:
        if options.only in (None, case.name):
            measure(case, sides)
    for side in sides.values():
        side.stop()
    print(f"load after: {os.getloadavg()[0]:.1f}")


def measure(case: Case, sides: dict[tuple[str, int], Side]) -> None:
    """Measure all sides that can run a case, on one core and on two."""
    taking_part = {key: side for key, side in sides.items() if key[0] in (JAX, FAST, *case.rivals)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.scfg"
        case.write(path)
        for (name, _), side in taking_part.items():
            num_steps = max(5, round(STEPS[name] * case.share))
            side.ask("load", path=str(path), dtype=case.dtype, plastic=case.plastic, num_steps=num_steps)
        facts = {key: side.answer() for key, side in taking_part.items()}
    rounds = {key: [] for key in taking_part}
    for _ in range(NUM_ROUNDS):
        for key, side in taking_part.items():
            side.ask("round")
            rounds[key].append(side.answer())
    print(f"\n{case.name}")
    for num in (1, 2):
        for clock, what in enumerate(("by the clock", "of the processor")):
            # Another program's turn lengthens both kinds of time, and shortens none.
            best = {name: min(each[clock] for each in rounds[name, num]) for name, n in rounds if n == num}
            report(num, what, best)
        compare_with_limit(num, sides[FAST, num], min(each[0] for each in rounds[FAST, num]), facts)
    plain, fast = (facts[name, 1]["memory"] for name in (JAX, FAST))
    print(f"  memory of the program: {FAST} {fast / 1e6:.2f} MB, {JAX} {plain / 1e6:.2f} MB", flush=True)


def report(num: int, what: str, best: dict[str, float]) -> None:
    """Print the times of a step, and how far ahead `fast-cpu` is."""
    times = ", ".join(f"{name} {1e6 * seconds:.0f} us" for name, seconds in best.items())
    ahead = []
    for name, bars in BARS.items():
        if name in best:
            ratio = best[name] / best[FAST]
            # The time of the processor of two cores says how much is computed, not how soon it is done.
            is_bar = (what == "of the processor") == (num == 1)
            verdict = f" ({'within' if ratio >= bars[num] else 'BELOW'} the bar of {bars[num]:g}x)" if is_bar else ""
            ahead.append(f"{ratio:.1f}x as fast as {name}{verdict}")
    print(f"  {cores(num)} {what}: {times}" + "".join(f"; {each}" for each in ahead), flush=True)


def compare_with_limit(num: int, side: Side, seconds: float, facts: dict) -> None:
    """Print how far a step is from what its bytes and its instructions take."""
    moved = facts[FAST, num]["moved"]
    side.ask("copy", moved=moved)
    limit = side.answer()
    copy = f"a step moves {moved / 1e6:.1f} MB, a copy {1e6 * limit:.0f} us ({moved / limit / 1e9:.0f} GB/s)"
    print(f"  {cores(num)}: {copy}: {FAST} takes {seconds / limit:.1f}x that")
    instructions = facts[FAST, num]["instructions"]
    if instructions is None:
        print(f"  {cores(num)}: instructions are not counted: no machine code for x86")
        return
    side.ask("clock")
    clock = side.answer()
    limit = instructions / A_CYCLE / clock / num
    count = f"{instructions:,} vector instructions for all pairs (a static count of the loop that leaves out none)"
    what = f"{1e6 * limit:.0f} us at {A_CYCLE} a cycle and the measured {clock / 1e9:.1f} GHz"
    print(f"  {cores(num)}: {count}, {what}: {FAST} takes {seconds / limit:.1f}x that", flush=True)


def cores(num: int) -> str:
    return f"{num} core{'s' if num > 1 else ''}"


if __name__ == "__main__":
    main()
