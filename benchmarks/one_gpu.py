"""Compare what Outlay says of a program with what the attached GPU does: its time, its memory, and its numbers.

    python benchmarks/one_gpu.py                     # everything, a process a program
    python benchmarks/one_gpu.py --only numbers      # or: time

*time*: the median step and the peak memory of the runtime, against `estimate` and `explain` of the same program, once
as compiled for the attached device and once as compiled for it as an absent target.
*numbers*: a step on the GPU, against the text of the very program computed on the CPU as `verify` does it. Both are
shares of the step's update, of the leaf that differs most: of what the proof computes with the products of the target,
of what it computes with exact ones, and of one CPU device that runs the step as it was written.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import outlay
from outlay.analysis.attribution.leaves import each_sharding
from outlay.analysis.hlo.execute.as_function import unknown_operations
from outlay.analysis.hlo.parse import parse_hlo
from outlay.analysis.verify.as_compiled.run_compiled import Job, run_apart
from outlay.core.jax_compat import text_with_constants
from outlay.recipes.find import find_recipe
from outlay.recipes.prepare import Prepared, prepare

TIMED = (
    "lm --model 100m --batch 32",
    "lm --model 100m --batch 32 --remat full",
    "lm --model llama3.2-1b --batch 4 --sequence 2048",
    "lm --model llama3.2-1b --batch 4 --sequence 4096 --remat full --loss-chunks 8",
    "lm --model mpt-350m --batch 8",
    "lm --model small --batch 128",
    "resnet --width 64 --batch 512",
    "digits",
)
SMALL = "--sequence 64 --width 64 --heads 4 --layers 2 --hidden 128 --batch 16"
COMPUTED = (
    "digits",
    f"lm {SMALL}",
    f"lm {SMALL} --dtype bfloat16",
    f"lm {SMALL} --accumulate 2 --remat full",
    "resnet --width 8",
    "gan --width 32",
    "lora --sequence 64 --batch 16 --rank 2",
)
TARGETS = {"NVIDIA H100 80GB HBM3": "h100:1x1", "NVIDIA H200": "h200:1x1"}


def prepared(words: str, target: str | None = None) -> Prepared:
    """Lay a recipe out over one device."""
    name, *options = words.split()
    recipe = find_recipe(name, options)
    return prepare(recipe, mesh=None if target else "data=1", target=target)


def timed(words: str, folder: Path | None) -> dict[str, Any]:
    """Time the steps of a program, and say what was expected."""
    device = jax.devices()[0]
    row: dict[str, Any] = {"device": device.device_kind}
    here = prepared(words)
    programs = {"attached": here.program}
    if target := TARGETS.get(device.device_kind):
        programs["absent"] = prepared(words, target).program
    for name, program in programs.items():
        explained = outlay.explain(program)
        estimate, memory, compiled = outlay.estimate(explained), explained.memory, program.compiled.as_text()
        assert memory is not None
        assert compiled is not None
        row[name] = {
            "seconds": [estimate.seconds_low, estimate.seconds, estimate.seconds_high],
            "parts": dict(estimate.parts),
            "peak": memory.peak,
            "needed": memory.needed,
        }
        if folder:
            text = gzip.compress(compiled.encode())
            (folder / f"{words.replace('--', '').replace(' ', '_')}_{name}.hlo.gz").write_bytes(text)
    state = here.program.init(jax.random.key(0))
    batch = jax.device_put(next(iter(here.recipe.data)), NamedSharding(here.program.mesh, PartitionSpec()))
    times = []
    for _ in range(8):
        start = time.perf_counter()
        for _ in range(5):
            state, outputs = here.program(state, batch)
        jax.block_until_ready(outputs)
        times.append((time.perf_counter() - start) / 5)
    row["measured"] = {"seconds": statistics.median(times[2:]), "spread": [min(times[2:]), max(times[2:])]}
    row["measured"]["peak"] = (device.memory_stats() or {}).get("peak_bytes_in_use")
    return row


def computed(words: str, folder: Path | None) -> dict[str, Any]:
    """Compute a step on the GPU, and its compiled text on the CPU."""
    here = prepared(words)
    program, batch = here.program, next(iter(here.recipe.data))
    compiled = program.compiled
    text = text_with_constants(compiled)
    if folder:
        (folder / f"{words.replace('--', '').replace(' ', '_')}_numbers.hlo.gz").write_bytes(
            gzip.compress(text.encode())
        )
    if unknown := unknown_operations(parse_hlo(text), {}):
        return {"unknown": [str(one) for one in unknown]}
    state = program.init(jax.random.key(0))
    before = [np.asarray(_plain(leaf)) for leaf in jax.tree.leaves(state)]
    used = each_sharding(compiled.args_info, compiled.input_shardings)
    leaves = [*before, *map(np.asarray, jax.tree.leaves(batch))]
    after, outputs = program(state, batch)
    on_gpu = [np.asarray(_plain(leaf)) for leaf in jax.tree.leaves((after, outputs))]
    call = [leaf for leaf, where in zip(leaves, used, strict=True) if where is not None]
    job = Job(text, (("data", 1),), ((),) * len(call), ((),) * len(on_gpu), (call,), "tf32")
    answer = run_apart(job)
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path((after, outputs))]
    shares = {}
    for kind, results in (("as the target", answer.rounded), ("exact", answer.exact[0])):
        worst, moved, wrong = (0.0, ""), 0.0, 0.0
        for number, (gpu, cpu) in enumerate(zip(on_gpu, results, strict=True)):
            if not np.issubdtype(np.asarray(cpu).dtype, np.inexact) and str(gpu.dtype) != "bfloat16":
                continue
            right = np.asarray(cpu).astype(np.float64)
            old = before[number].astype(np.float64) if number < len(before) else np.zeros_like(right)
            update, apart = float(np.linalg.norm(right - old)), float(np.linalg.norm(gpu.astype(np.float64) - right))
            worst = max(worst, (apart / update if update else 0.0, names[number]))
            moved, wrong = moved + update**2, wrong + apart**2
        shares[kind] = {"all": (wrong / moved) ** 0.5, "worst": worst}
    return {"device": jax.devices()[0].device_kind, "instructions": len(list(parse_hlo(text).instructions())), **shares}


def _plain(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf


def main() -> int:
    """Run each program in a process of its own, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("time", "numbers"))
    parser.add_argument("--row", nargs=2, metavar=("KIND", "PROGRAM"), help=argparse.SUPPRESS)
    parser.add_argument("--texts", type=Path, help="also keep the compiled texts in this folder")
    arguments = parser.parse_args()
    if arguments.row:
        kind, words = arguments.row
        try:
            row = (timed if kind == "time" else computed)(words, arguments.texts)
        except Exception as error:
            traceback.print_exc()
            row = {"error": f"{type(error).__name__}: {error}"[:600]}
        print("ROW " + json.dumps({"kind": kind, "program": words, **row}))
        return 0
    rows = [(kind, words) for kind, all_ in (("numbers", COMPUTED), ("time", TIMED)) for words in all_]
    for kind, words in rows:
        if arguments.only in (None, kind):
            extra = ["--texts", str(arguments.texts)] if arguments.texts else []
            command = [sys.executable, __file__, "--row", kind, words, *extra]
            done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ})
            lines = [line[4:] for line in done.stdout.splitlines() if line.startswith("ROW ")]
            print(lines[0] if lines else f"{kind} {words}: exit {done.returncode}: {done.stderr[-600:]}", flush=True)
            if lines and "error" in lines[0]:
                print(done.stderr[-1500:], flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
