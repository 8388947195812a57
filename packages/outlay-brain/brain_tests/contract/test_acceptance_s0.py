"""The Brain over devices; where its arrays live, and that it runs there."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from brain_tests.contract.ab_reference import ab_brain, recorded, recorded_start
from tests.contract.placed_as_planned import blocks

import outlay
from outlay.graph.graph_loop import GraphLoop

BRAIN = {
    "A_ex": {"soma": {"potential": (256,)}},
    "B_ex": {"synapses": {"kernel": (256, 832)}},
    "integrator": {"trace": (2,)},
    "B_in": {"output": (64,)},
}


def brain() -> dict:
    return jax.tree.map(jnp.zeros, BRAIN, is_leaf=lambda leaf: isinstance(leaf, tuple))


def six() -> jax.sharding.Mesh:
    return outlay.mesh(devices=jax.devices()[:6], all=6)


def test_without_rules_that_split_every_array_is_replicated_six_times() -> None:
    mesh = six()
    plan = (outlay.Layout() + outlay.replicate()).plan(brain(), mesh)
    placed = outlay.arrays.put(brain(), plan, mesh)
    for array in jax.tree.leaves(placed):
        assert blocks(array) == [[0, 1, 2, 3, 4, 5]]
    assert {leaf.num_copies for leaf in plan} == {6}
    assert not any(leaf.is_split for leaf in plan)
    assert "replicated 6 times" in str(plan)
    assert "distributed" not in str(plan)


def test_the_plan_says_that_the_layout_brings_nothing() -> None:
    (note,) = (outlay.Layout() + outlay.replicate()).plan(brain(), six()).notes
    assert "this layout gains nothing: every leaf is replicated 6 times" in note
    assert "no dim of B_ex.synapses.kernel (256, 832) is divisible by 6" in note


def test_modules_on_devices_of_their_own() -> None:
    mesh = six()
    layout = outlay.by_module({"integrator": 1, "A_ex": 2, "B_ex": 4, "B_in": 5})
    placed = outlay.arrays.put(brain(), layout.plan(brain(), mesh), mesh)
    assert blocks(placed["A_ex"]["soma"]["potential"]) == [[2]]
    assert blocks(placed["B_ex"]["synapses"]["kernel"]) == [[4]]
    assert blocks(placed["integrator"]["trace"]) == [[1]]
    assert blocks(placed["B_in"]["output"]) == [[5]]


MODULES = {"spiker": 0, "integrator": 1, "A_ex": 2, "A_in": 3, "B_ex": 4, "B_in": 5}


@functools.cache
def placed_brain():
    """Every module on a device of its own. That it computes what one device does: test_brain_as_compiled.py."""
    model = ab_brain()
    drive = {"drive": np.asarray(recorded()["drive"][:10], np.float32)}
    layout = outlay.by_module(MODULES)
    start = functools.partial(recorded_start, model, recorded())
    return outlay.program(GraphLoop(model.graph), lambda key: start(), drive, layout=layout, mesh=six(), mode="placed")


def test_the_placed_brain_is_where_the_layout_says() -> None:
    placed = placed_brain()
    state = placed.init(jax.random.key(0))
    assert blocks(state["A_ex"]["soma"]["potential"]) == [[2]]
    assert blocks(state["B_ex"]["synapses"]["kernel"]) == [[4]]
    assert blocks(state["integrator"]["trace"]["rise"]) == [[1]]
    for name, device in MODULES.items():
        assert {leaf.device_ids for leaf in placed.plan if leaf.path.startswith(f"cache.{name}.")} == {(device,)}


def test_the_cache_is_shown_by_path() -> None:
    shown = str(outlay.show(placed_brain().init(jax.random.key(0)), "cache"))
    assert "cache.B_in.out_spikes" in shown
    assert "device 5" in shown
    assert "(64,)" in shown
