"""The reports as files, in tests/golden/.

To write them anew: `OUTLAY_UPDATE_GOLDEN=1 pytest tests/unit/report/test_golden.py`, then read the diff.
"""

import json
import os
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from tests.unit.report.arrays import mesh_of, pod, put, shape_on

from outlay.layout.layout import Layout
from outlay.layout.placement import on, replicate
from outlay.report.show import show

GOLDEN = Path(__file__).parents[2] / "golden"


def plan():
    shapes = {
        "params": {
            "dense": {
                "kernel": jax.ShapeDtypeStruct((64, 32), np.float32),
                "bias": jax.ShapeDtypeStruct((32,), np.float32),
            },
            "head": {"kernel": jax.ShapeDtypeStruct((32, 10), np.float32)},
        },
        "cache": jax.ShapeDtypeStruct((16,), np.int8),
        "step": jax.ShapeDtypeStruct((), np.int32),
    }
    rules = [("params.dense.kernel", P("data", "model")), ("params.head.kernel", P("data")), ("cache", on(5))]
    layout = Layout([*rules, ("batch.**", P("data"))]) + replicate()
    batch = {"image": jax.ShapeDtypeStruct((16, 64), np.float32)}
    return layout.plan(shapes, mesh_of(data=4, model=2), batch=batch)


def tree():
    return {
        "a": [put((8, 8), mesh_of(x=2, y=4), "x", "y"), put((8,), mesh_of(x=2, y=4))],
        "on_one": jax.device_put(np.ones((3, 3), np.float32), jax.devices()[2]),
        "host": np.ones(5, np.float32),
    }


SHOWN = {
    "show_plan": plan,
    "show_tree": tree,
    "show_matrix": lambda: put((4, 8), mesh_of(x=2, y=4), "x", "y"),
    "show_rank4": lambda: put((4, 8, 8, 2), mesh_of(a=2, b=2, c=2), "a", "b", "c"),
    "show_pod": lambda: shape_on((4096,), pod(data=32, model=8), ("data", "model")),
}


@pytest.mark.parametrize("name", SHOWN)
def test_text(name):
    compare(f"{name}.txt", str(show(SHOWN[name]())) + "\n")


@pytest.mark.parametrize("name", ["show_plan", "show_tree"])
def test_json(name):
    compare(f"{name}.json", json.dumps(show(SHOWN[name]()).to_dict(), indent=1) + "\n")


def compare(file, text):
    path = GOLDEN / file
    if os.environ.get("OUTLAY_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
