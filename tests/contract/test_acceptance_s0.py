"""Acceptance, document 0: the Brain over devices; where its arrays live."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from tests.contract.placed_as_planned import blocks

import outlay

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


def test_s0_07_without_rules_that_split_every_array_is_replicated_six_times() -> None:
    mesh = six()
    plan = (outlay.Layout() + outlay.replicate()).plan(brain(), mesh)
    placed = outlay.put(brain(), plan, mesh)
    for array in jax.tree.leaves(placed):
        assert blocks(array) == [[0, 1, 2, 3, 4, 5]]
    assert {leaf.num_copies for leaf in plan} == {6}
    assert not any(leaf.is_split for leaf in plan)
    assert "replicated 6 times" in str(plan)
    assert "distributed" not in str(plan)


def test_s0_08_the_plan_says_that_the_layout_brings_nothing() -> None:
    (note,) = (outlay.Layout() + outlay.replicate()).plan(brain(), six()).notes
    assert "this layout brings nothing: every leaf is replicated 6 times" in note
    assert "no dim of B_ex.synapses.kernel (256, 832) divides by 6" in note


def test_s0_12_modules_on_devices_of_their_own() -> None:
    mesh = six()
    layout = outlay.by_module({"integrator": 1, "A_ex": 2, "B_ex": 4, "B_in": 5})
    placed = outlay.put(brain(), layout.plan(brain(), mesh), mesh)
    assert blocks(placed["A_ex"]["soma"]["potential"]) == [[2]]
    assert blocks(placed["B_ex"]["synapses"]["kernel"]) == [[4]]
    assert blocks(placed["integrator"]["trace"]) == [[1]]
    assert blocks(placed["B_in"]["output"]) == [[5]]
