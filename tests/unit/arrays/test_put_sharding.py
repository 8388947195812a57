"""`put` and `reshard` with a sharding in place of a plan."""

from __future__ import annotations

import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import outlay

TREE = {"w": np.arange(64).reshape(8, 8), "v": np.arange(32).reshape(8, 4)}


def test_every_leaf_gets_the_sharding() -> None:
    mesh = outlay.mesh(a=4, b=2)
    placed = outlay.put(TREE, NamedSharding(mesh, P("a", "b")), check_equal=True)
    moved = outlay.reshard(placed, NamedSharding(mesh, P("b", "a")))
    for name, value in TREE.items():
        assert placed[name].sharding.spec == P("a", "b")
        assert moved[name].sharding.spec == P("b", "a")
        np.testing.assert_array_equal(moved[name], value)


def test_every_leaf_that_does_not_fit_is_listed() -> None:
    with pytest.raises(outlay.errors.PlaceError, match=r"P\(None, 'x'\) on mesh x=8 does not fit: 1 problem") as caught:
        outlay.put(TREE, NamedSharding(outlay.mesh(x=8), P(None, "x")))
    assert caught.value.problems[0].where == "v"


def test_a_plan_needs_its_mesh() -> None:
    plan = (outlay.Layout() + outlay.replicate()).plan(TREE, outlay.mesh(x=8))
    with pytest.raises(outlay.errors.PlaceError, match="give the mesh that it was made for too"):
        outlay.put(TREE, plan)
