"""Runs a Brain's file with Spark itself; started by `brain_spark.py`.

Spark 0.1.0 is the release that the tutorial's file was written for. Its graph editor, which it imports at once, needs a
window system, so an empty module stands in for it.
"""

import importlib
import sys
import types

import jax
import numpy as np
from _rounds import serve

for name in ("spark.graph_editor", "spark.graph_editor.editor"):
    module = types.ModuleType(name)
    module.SparkGraphEditor, module.__path__ = None, []
    sys.modules[name] = module

spark = importlib.import_module("spark")  # after what stands in for its editor


def load(path, num_steps, **_):
    """Load the file, which says all there is to say; each step is a call."""
    brain = spark.nn.Brain(config=spark.nn.BrainConfig.from_file(path))
    drive = spark.FloatArray(np.sin(np.arange(4.0)).astype(np.float16))
    brain(drive=drive)  # this builds it
    graph, state = spark.split(brain)

    @jax.jit
    def step(state, drive):
        model = spark.merge(graph, state)
        outputs = model(drive=drive)
        return outputs, spark.split(model)[1]

    def run():
        nonlocal state
        for _ in range(num_steps):
            outputs, state = step(state, drive)
        jax.block_until_ready(outputs)

    return run, None


if __name__ == "__main__":
    serve(load)
