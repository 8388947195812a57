"""Putting and moving arrays by a plan or by a sharding: where they land, and what is refused."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from tests.contract.placed_as_planned import assert_placed_as_planned

import outlay
from outlay.arrays.put import _identity
from outlay.arrays.shardings import shardings

pytestmark = [pytest.mark.newest, pytest.mark.any_jax]  # the contracts put states with the newest JAX


def tree() -> dict[str, Any]:
    return {
        "w": np.arange(64 * 32, dtype=np.float32).reshape(64, 32),
        "b": np.arange(16, dtype=np.float32),
        "n": np.int32(3),
    }


@pytest.fixture
def mesh() -> jax.sharding.Mesh:
    return outlay.mesh(data=4, model=2)


LAYOUTS = {
    "rows": outlay.Layout([("w", P("data")), ("b", P("model"))]),
    "columns": outlay.Layout([("w", P(None, "data")), ("b", P("data"))]),
    "both": outlay.Layout([("w", P("model", "data")), ("b", P(("data", "model")))]),
    "whole": outlay.Layout() + outlay.replicate(),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("form", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
def test_put_places_as_planned_and_keeps_values(layout: outlay.Layout, form: Any, mesh: Any) -> None:
    plan = layout.plan(tree(), mesh)
    placed = outlay.arrays.put(jax.tree.map(form, tree()), plan, mesh)
    assert_placed_as_planned(placed, plan)
    jax.tree.map(np.testing.assert_array_equal, placed, tree())
    assert all(leaf.committed for leaf in jax.tree.leaves(placed))


def test_put_leaves_the_original_alone(mesh: Any) -> None:
    given = jax.tree.map(jnp.asarray, tree())
    outlay.arrays.put(given, LAYOUTS["rows"].plan(given, mesh), mesh)
    np.testing.assert_array_equal(given["w"], tree()["w"])


def test_a_part_of_a_planned_tree_is_put_where_the_whole_would_be(mesh: Any) -> None:
    plan = LAYOUTS["rows"].plan(tree(), mesh)
    part = outlay.arrays.put({"w": tree()["w"]}, plan, mesh, part=True)
    assert list(part) == ["w"]
    assert part["w"].sharding.spec == P("data", None)
    np.testing.assert_array_equal(part["w"], tree()["w"])
    with pytest.raises(outlay.errors.LayoutError, match=r"1 difference\n  extra leaf: ww\n.*\n.*did you mean 'w'"):
        outlay.arrays.put({"ww": tree()["w"]}, plan, mesh, part=True)
    with pytest.raises(outlay.errors.LayoutError, match="2 differences\n  missing leaf: "):
        outlay.arrays.put({"w": tree()["w"]}, plan, mesh)


@pytest.mark.parametrize("verb", [outlay.arrays.put, outlay.arrays.reshard])
def test_a_wrong_tree_is_refused_with_every_difference(verb: Any, mesh: Any) -> None:
    plan = LAYOUTS["rows"].plan(tree(), mesh)
    wrong = {"w": np.ones((64, 16), np.float32), "b": np.ones(16, np.float16), "bias": np.ones(3)}
    with pytest.raises(outlay.errors.LayoutError, match=r"not the ones the plan was made for: 4 differences") as caught:
        verb(wrong, plan, mesh)
    assert [(p.kind, p.where) for p in caught.value.problems] == [
        ("missing leaf", "n"),
        ("extra leaf", "bias"),
        ("other dtype", "b"),
        ("other shape", "w"),
    ]
    assert caught.value.problems[3].what == "shape (64, 16), planned (64, 32)"
    assert caught.value.problems[2].fix == "convert it: x.astype('float32')"


@pytest.mark.some_cases(8)
@pytest.mark.parametrize("before", LAYOUTS)
@pytest.mark.parametrize("after", LAYOUTS)
def test_reshard_keeps_values_and_leaves_the_old_arrays_valid(before: str, after: str, mesh: Any) -> None:
    old = outlay.arrays.put(tree(), LAYOUTS[before].plan(tree(), mesh), mesh)
    plan = LAYOUTS[after].plan(tree(), mesh)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        moved = outlay.arrays.reshard(old, plan, mesh)
    assert_placed_as_planned(moved, plan)
    jax.tree.map(np.testing.assert_array_equal, moved, tree())
    jax.tree.map(np.testing.assert_array_equal, old, tree())


def compiled_move(before: P, after: P, mesh: Any) -> Any:
    shapes = {"w": jax.ShapeDtypeStruct((1024, 1024), jnp.float32)}
    old, new = (outlay.Layout([("w", spec)]).plan(shapes, mesh) for spec in (before, after))
    leaves, structure = jax.tree.flatten(shardings(new, shapes, mesh))
    given = {"w": jax.ShapeDtypeStruct((1024, 1024), jnp.float32, sharding=shardings(old, shapes, mesh)["w"])}
    return _identity(structure, tuple(leaves)).lower(given).compile().memory_analysis()


@pytest.mark.parametrize(
    ("before", "after"),
    [(P("data"), P(None, "data")), (P(None, "data"), P("data")), (P("data"), P("data"))],
    ids=["rows to columns", "columns to rows", "nothing to do"],
)
def test_reshard_never_holds_a_whole_array_on_a_device(before: P, after: P) -> None:
    analysis = compiled_move(before, after, outlay.mesh(data=8))
    whole = 4 * 1024 * 1024
    assert analysis.temp_size_in_bytes <= whole // 4 + 1024  # what is sent and what arrives, an eighth each


def test_reshard_to_devices_of_their_own(mesh: Any) -> None:
    old = outlay.arrays.put(tree(), LAYOUTS["whole"].plan(tree(), mesh), mesh)
    plan = (outlay.Layout([("w", outlay.layout.on(5)), ("b", outlay.layout.on([1, 2]))]) + outlay.replicate()).plan(
        tree(), mesh
    )
    moved = outlay.arrays.reshard(old, plan, mesh)
    assert_placed_as_planned(moved, plan)
    jax.tree.map(np.testing.assert_array_equal, moved, tree())


def test_modules_are_put_on_devices_of_their_own() -> None:
    mesh = outlay.mesh(x=8)
    modules = {name: {"potential": np.full((256,), i, np.float32)} for i, name in enumerate("abcd")}
    layout = outlay.by_module({"a": 2, "b": 5, "c": [6, 7], "d": list(range(8))})
    placed = outlay.arrays.put(modules, layout.plan(modules, mesh), mesh)
    ids = {name: sorted(d.id for d in placed[name]["potential"].devices()) for name in placed}
    assert ids == {"a": [2], "b": [5], "c": [6, 7], "d": list(range(8))}
    jax.tree.map(np.testing.assert_array_equal, placed, modules)


TREE = {"w": np.arange(64).reshape(8, 8), "v": np.arange(32).reshape(8, 4)}


def test_every_leaf_gets_the_sharding() -> None:
    mesh = outlay.mesh(a=4, b=2)
    placed = outlay.arrays.put(TREE, NamedSharding(mesh, P("a", "b")), check_equal=True)
    moved = outlay.arrays.reshard(placed, NamedSharding(mesh, P("b", "a")))
    for name, value in TREE.items():
        assert placed[name].sharding.spec == P("a", "b")
        assert moved[name].sharding.spec == P("b", "a")
        np.testing.assert_array_equal(moved[name], value)


def test_every_leaf_that_does_not_fit_is_listed() -> None:
    with pytest.raises(outlay.errors.PlaceError, match=r"P\(None, 'x'\) on mesh x=8 does not fit: 1 problem") as caught:
        outlay.arrays.put(TREE, NamedSharding(outlay.mesh(x=8), P(None, "x")))
    assert caught.value.problems[0].where == "v"


@pytest.mark.parametrize(
    "leaf",
    ["text", np.array([None] * 8), np.zeros(8, "M8[s]"), np.zeros(8, [("a", "f4")]), object()],
    ids=["text", "objects", "dates", "records", "object"],
)
@pytest.mark.parametrize("planned", [False, True], ids=["a sharding", "a plan"])
def test_leaves_that_are_not_arrays_are_named(leaf: Any, planned: bool, mesh: Any) -> None:
    where: Any = NamedSharding(mesh, P("data"))
    if planned:
        where = outlay.Layout([("w", P("data"))]).plan({"w": np.zeros(8, np.float32)}, mesh)
    with pytest.raises(outlay.errors.PlaceError, match=r"1 leaf cannot be placed:\n  not an array: w\n"):
        outlay.arrays.put({"w": leaf}, where, mesh if planned else None)


@pytest.mark.parametrize("verb", [outlay.arrays.put, outlay.arrays.reshard])
def test_donated_leaves_are_named(verb: Any, mesh: Any) -> None:
    deleted = jnp.ones(8)
    deleted.delete()
    with pytest.raises(outlay.errors.PlaceError, match=r"used up: w\n.*\n.*place what the program returned"):
        verb({"w": deleted}, NamedSharding(mesh, P("data")))


def test_a_plan_needs_its_mesh() -> None:
    plan = (outlay.Layout() + outlay.replicate()).plan(TREE, outlay.mesh(x=8))
    with pytest.raises(outlay.errors.PlaceError, match="pass the mesh that it was made for too"):
        outlay.arrays.put(TREE, plan)
