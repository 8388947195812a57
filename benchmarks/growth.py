"""How planning, printing and refusing grow with a tree, a file or a log: twice as much should take about twice as long.

Each row is one thing that a user waits for, at four sizes, each twice the last, with the largest over the one before.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from jax.sharding import PartitionSpec as P

import outlay
from outlay.cli.diagnosis import diagnose_text
from outlay.core.paths import matches

BASE = outlay.fsdp("data", min_size=1) + outlay.data_parallel()


def tree(num_leaves: int) -> Any:
    shapes = {"kernel": jax.ShapeDtypeStruct((64, 64), "float32"), "bias": jax.ShapeDtypeStruct((64,), "float32")}
    return {"params": {f"layer{i}": shapes for i in range(num_leaves // 2)}}


def planned(num_leaves: int, spec: P) -> outlay.layout.Plan:
    return (outlay.Layout([("params.**.kernel", spec)]) + BASE).plan(tree(num_leaves), outlay.mesh(data=4, model=2))


def plan(num: int) -> Callable[[], Any]:
    return lambda: planned(num, P(None, "model"))


def text(num: int) -> Callable[[], Any]:
    return planned(num, P(None, "model")).__str__


def diff(num: int) -> Callable[[], Any]:
    before, after = planned(num, P(None, "model")), planned(num, P("model"))
    return lambda: str(before.diff(after))


def saved(num: int) -> Callable[[], Any]:
    plan = planned(num, P(None, "model"))
    return lambda: outlay.layout.Plan.from_json(plan.to_json())


def typo(num: int) -> Callable[[], Any]:
    layout = outlay.Layout([("params.*.kernal", P("model"))]) + outlay.data_parallel()
    return lambda: refused(lambda: layout.plan(tree(num), outlay.mesh(data=4, model=2)))


def uncovered(num: int) -> Callable[[], Any]:
    layout = outlay.Layout([("params.layer0.kernel", P("model"))])
    return lambda: refused(lambda: layout.plan(tree(num), outlay.mesh(data=4, model=2)))


def wildcards(num: int) -> Callable[[], Any]:
    path = ".".join("a" * (num // 100))
    return lambda: matches(".".join(["**", "a"] * 20) + ".x", path)


def toml(num: int) -> Callable[[], Any]:
    rule = '[[rule]]\nmatch = "params.**.kernel"\nspec = ["-", "model"]\notherwis = "replicate"\n'
    file = Path(tempfile.mkdtemp()) / "layout.toml"
    file.write_text(rule * (num // 4))
    return lambda: refused(lambda: outlay.layout.read_layout(file))


def doctor(num: int) -> Callable[[], Any]:
    return lambda: diagnose_text("deadbeef " * num)


def refused(call: Callable[[], Any]) -> str:
    try:
        call()
    except outlay.errors.LayoutError as error:
        return str(error)
    raise AssertionError("it was meant to be refused")


ROWS = {
    "plan a tree": plan,
    "print a plan": text,
    "print a difference": diff,
    "save and read a plan": saved,
    "a typo after a wildcard": typo,
    "leaves that no rule covers": uncovered,
    "`**` twenty times": wildcards,
    "TOML with a wrong key a rule": toml,
    "doctor on a long log": doctor,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--largest", type=int, default=20_000, metavar="N", help="leaves, lines or words")
    sizes = [parser.parse_args().largest // 2**k for k in (3, 2, 1, 0)]
    outlay.simulate(8)
    print(f"{'seconds at':<30}" + "".join(f"{size:>10,}" for size in sizes) + "   for twice as much")
    for name, make in ROWS.items():
        seconds = []
        for size in sizes:
            call = make(size)
            start = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - start)
        row = "".join(f"{each:>10.3f}" for each in seconds)
        print(f"{name:<30}{row}   {seconds[-1] / max(seconds[-2], 1e-9):.1f}x")


if __name__ == "__main__":
    main()
