"""A graph that is not a Brain: waves that drive each other, between a source and a sum."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import outlay
from outlay.graph.graph_loop import GraphLoop
from outlay.graph.step_graph import Part, Source, StepGraph

SIZES = {"source": 5, "a": 7, "b": 10}
BY_ROWS = ("kernel", "height", "is_down")
NUM_STEPS = 11
WHOLE = [("**", P()), ("batch.**", P())]


def graph(*, near: int = 1, far: int = 1) -> StepGraph:
    """The graph; `near` and `far` are latencies."""
    return StepGraph(
        {
            "source": Part(_source, {"x": (Source("inputs", "x"),)}),
            "a": Part(_wave, {"in": (Source("source", "tops", near), Source("b", "tops", far))}, BY_ROWS),
            "b": Part(
                _wave,
                {"in": (Source("a", "tops", near), Source("a", "height", near), Source("b", "tops", far))},
                BY_ROWS,
            ),
            "sum": Part(_sum, {"in": (Source("b", "height", far),)}),
        },
        {"sum": ("sum", "total"), "height": ("a", "height")},
    )


def init_of(graph: StepGraph):
    def init(key):
        keys = jax.random.split(key, 2)
        num = SIZES["a"], SIZES["b"]
        produced = {name: {"tops": jax.ShapeDtypeStruct((size,), jnp.int8)} for name, size in SIZES.items()}
        for name in ("a", "b"):
            produced[name]["height"] = jax.ShapeDtypeStruct((SIZES[name],), jnp.float32)
        produced["sum"] = {"total": jax.ShapeDtypeStruct((), jnp.float32)}
        return {
            "source": {"phase": jnp.ones(SIZES["source"])},
            "a": _wave_state(keys[0], num[0], SIZES["source"] + num[1]),
            "b": _wave_state(keys[1], num[1], 2 * num[0] + num[1]),
            "sum": {"total": jnp.zeros(())},
            "cache": graph.init_cache(produced),
        }

    return init


def inputs(num_steps: int = NUM_STEPS) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(0).normal(size=(num_steps, SIZES["source"])).astype(np.float32)}


def graph_loop(*, near: int = 1, far: int = 1) -> GraphLoop:
    """One that records what is split, what is not, and what is put out."""
    return GraphLoop(graph(near=near, far=far), record=("a.height", "b:tops", "b.kernel", "b.seen"), stride=5)


def on_one_device(graph_loop: GraphLoop, key: int = 0, num_calls: int = 1):
    """State and outputs after some graph loops, one after the other, on one device."""
    mesh = outlay.mesh(devices=jax.devices()[:1], all=1)
    program = outlay.program(graph_loop, init_of(graph_loop.graph), inputs(), layout=WHOLE, mesh=mesh)
    state, outputs = program(program.init(jax.random.key(key)), inputs())
    for _ in range(num_calls - 1):
        state, outputs = program(state, inputs())
    return state, outputs


def assert_same(outputs, expected) -> None:
    """Bit for bit, in every leaf."""
    for (path, one), other in zip(
        jax.tree_util.tree_leaves_with_path(jax.device_get(outputs)),
        jax.tree.leaves(jax.device_get(expected)),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other, err_msg=jax.tree_util.keystr(path))


def _source(state, read):
    return {"phase": state["phase"] + 1}, {"tops": (jnp.sin(read["x"][0] * state["phase"]) > 0.2).astype(jnp.int8)}


def _wave(state, read):
    seen = jnp.concatenate([values.astype(jnp.float32) for values in read["in"]])
    # Whole numbers: XLA may sum floats in an order that depends on the number of rows. And factors are powers of two,
    # whose products are exact: whether a product is rounded before it is added is left to LLVM, which decides by what
    # is next to it, and otherwise without optimization than with it. A tanh is made of such sums.
    brought = jnp.round(jnp.clip(state["kernel"] * seen[None], -1, 1) * 2**16).astype(jnp.int32)
    drive = brought.sum(1).astype(jnp.float32) * 2**-16
    height = state["height"] * 0.5 + jnp.clip(drive, -1, 1)
    is_top = height > 0.3
    after = {
        "kernel": state["kernel"] + 2**-10 * is_top[:, None] * seen[None],
        "height": jnp.where(is_top, 0, height),
        "is_down": state["is_down"],
        "seen": state["seen"] * 0.5 + seen,
    }
    return after, {"tops": jnp.where(is_top, jnp.where(state["is_down"], -1, 1), 0).astype(jnp.int8), "height": height}


def _sum(state, read):
    return {"total": state["total"] * 0.5 + read["in"][0].sum()}, {"total": state["total"]}


def _wave_state(key, num: int, num_seen: int):
    kernel, height = jax.random.normal(key, (num, num_seen)), jnp.linspace(0, 1, num)
    # A sum over all rows: taken piece by piece, it would be rounded differently.
    return {"kernel": kernel / jnp.abs(kernel).sum(0, keepdims=True), "height": height} | {
        "is_down": jnp.arange(num) % 3 == 0,
        "seen": jnp.zeros(num_seen),
    }
