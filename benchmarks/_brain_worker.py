"""Runs a Brain's file with Outlay, a compiled loop on one device; started by `brain_spark.py`."""

import dataclasses
import os
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
from _instructions import count_instructions, cycles_a_second
from _rounds import serve

import outlay
from outlay.brain.fused.fused_graph import fused_graph
from outlay.brain.fused.pair_change import PASSES


def load(path, dtype, plastic, num_steps):
    """Make a round of many steps, which is one call of a graph loop."""
    brain = dataclasses.replace(outlay.brain.read_brain(path), dtype=dtype)
    if not plastic:
        modules = {
            name: dataclasses.replace(module, learning_rule=None) if hasattr(module, "learning_rule") else module
            for name, module in brain.modules.items()
        }
        brain = dataclasses.replace(brain, modules=modules)
    graph = fused_graph(brain, brain.graph, sys.argv[1]) if sys.argv[1] in PASSES else brain.graph
    inputs = {"drive": np.tile(np.sin(np.arange(4.0, dtype=np.float32)), (num_steps, 1))}
    layout = outlay.Layout([("**", outlay.replicate()), ("batch.**", outlay.replicate())])
    program = outlay.program(
        outlay.graph.GraphLoop(graph), brain.init, inputs, layout=layout, mesh=outlay.mesh("one=1")
    )
    state = program.init(jax.random.key(0))
    known = {"memory": memory_of(program.compiled), "moved": bytes_of_a_step(state, plastic)}
    if sys.argv[1] == "fast-cpu":
        known["instructions"] = count_instructions(brain)

    def run():
        nonlocal state
        state, _ = jax.block_until_ready(program(state, inputs))

    return run, known


def memory_of(compiled):
    """Return the most bytes that a program takes."""
    stats = compiled.memory_analysis()
    outputs = stats.output_size_in_bytes - stats.alias_size_in_bytes
    return stats.argument_size_in_bytes + outputs + stats.temp_size_in_bytes


def bytes_of_a_step(state, plastic):
    """Return the bytes that must move: kernels and targets, read and written, and delays, which are read."""
    times = {"kernel": 2, "target_trace": 2, "delays": 1} if plastic else {"kernel": 1, "delays": 1}
    leaves = [(path[-1].key, leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(state)]
    return sum(times.get(name, 0) * leaf.nbytes for name, leaf in leaves if leaf.ndim == 2)


def copy_seconds(moved):
    """Return the time of a copy that moves so many bytes, by as many threads as there are cores."""
    num = len(os.sched_getaffinity(0))
    halves = [(np.ones(moved // 2 // num, np.uint8), np.empty(moved // 2 // num, np.uint8)) for _ in range(num)]
    times = []
    with ThreadPoolExecutor(num) as threads:
        for _ in range(30):
            start = time.perf_counter()
            # Many copies for each thread, so that starting one costs nothing.
            list(threads.map(lambda both: [np.copyto(both[1], both[0]) for _ in range(50)], halves))
            times.append((time.perf_counter() - start) / 50)
    return statistics.median(times[5:])


if __name__ == "__main__":
    outlay.simulate(1)
    serve(load, {"copy": copy_seconds, "clock": cycles_a_second})
