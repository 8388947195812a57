"""Runs a Brain's file with Spark itself; started by `brain_spark.py`.

For each line that it reads it runs a round and prints the seconds of a step, and the processor's.

Spark 0.1.0 is the release that the tutorial's file was written for. Its graph editor, which it imports at once, needs a
window system, so an empty module stands in for it.
"""

import importlib
import sys
import time
import types

import jax
import numpy as np

for name in ("spark.graph_editor", "spark.graph_editor.editor"):
    module = types.ModuleType(name)
    module.SparkGraphEditor, module.__path__ = None, []
    sys.modules[name] = module

spark = importlib.import_module("spark")  # after what stands in for its editor


def main(path, num_steps):
    brain = spark.nn.Brain(config=spark.nn.BrainConfig.from_file(path))
    drive = spark.FloatArray(np.sin(np.arange(4.0)).astype(np.float16))
    brain(drive=drive)  # this builds it
    graph, state = spark.split(brain)

    @jax.jit
    def step(state, drive):
        model = spark.merge(graph, state)
        outputs = model(drive=drive)
        return outputs, spark.split(model)[1]

    def seconds(state):
        start, spent = time.perf_counter(), time.process_time()
        for _ in range(num_steps):
            outputs, state = step(state, drive)
        jax.block_until_ready(outputs)
        took = time.perf_counter() - start, time.process_time() - spent
        return " ".join(str(each / num_steps) for each in took), state

    _, state = seconds(state)
    print("ready", flush=True)
    for _ in sys.stdin:
        took, state = seconds(state)
        print(took, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
