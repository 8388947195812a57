"""Shardings of plans, and pencils: their specs, what moving between them costs, and what is refused."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

import outlay
from outlay.arrays.put import _identity
from outlay.arrays.shardings import shardings
from outlay.core.paths import under

pytestmark = [pytest.mark.newest, pytest.mark.any_jax]  # test_global_arrays.py has pencils there


def test_each_leaf_gets_its_sharding() -> None:
    mesh = outlay.mesh(data=4, model=2)
    tree = {"a": jnp.ones((8, 4)), "b": [jnp.ones(4), jnp.ones(())], "c": jnp.ones(4)}
    layout = outlay.Layout([("a", P("data", "model")), ("b.0", P("model")), ("c", outlay.layout.on(3))])
    placement = shardings(layout.plan(tree, mesh), tree, mesh)
    assert placement["a"] == NamedSharding(mesh, P("data", "model"))
    assert placement["b"] == [NamedSharding(mesh, P("model")), NamedSharding(mesh, P())]
    assert placement["c"] == SingleDeviceSharding(mesh.devices.flat[3])


def test_a_batch_is_found_under_its_root() -> None:
    mesh, batch = outlay.mesh(data=8), (jnp.ones((8, 2)), jnp.ones(8))
    plan = outlay.data_parallel().plan({}, mesh, batch=batch)
    assert [s.spec for s in shardings(plan, batch, mesh, root="batch")] == [P("data", None), P("data")]
    single = outlay.data_parallel().plan({}, mesh, batch=batch[0])
    assert shardings(single, batch[0], mesh, root="batch").spec == P("data", None)


def test_a_leaf_that_the_plan_lacks_is_named() -> None:
    mesh = outlay.mesh(data=8)
    plan = outlay.fsdp(min_size=8).plan({"a": jnp.ones((8, 4))}, mesh)
    with pytest.raises(KeyError, match="b"):
        shardings(plan, {"b": jax.ShapeDtypeStruct((8, 4), jnp.float32)}, mesh)


@pytest.mark.parametrize(
    ("root", "path", "joined"), [("", "a.b", "a.b"), ("batch", "", "batch"), ("batch", "'a.b'.c", "batch.'a.b'.c")]
)
def test_paths_below_a_root(root: str, path: str, joined: str) -> None:
    assert under(root, path) == joined


def test_moving_between_pencils_keeps_the_values_and_gathers_nothing() -> None:
    mesh = outlay.mesh(a=4, b=2)
    value = np.arange(16 * 8 * 8, dtype=np.float32).reshape(16, 8, 8)
    x = outlay.arrays.put(value, outlay.arrays.pencil(value.shape, mesh, along=2))
    for along in (1, 0, -1):
        x = outlay.arrays.reshard(x, outlay.arrays.pencil(value.shape, mesh, along=along))
        np.testing.assert_array_equal(x, value)
        assert x.sharding.shard_shape(value.shape)[along] == value.shape[along]


def test_moving_between_pencils_never_holds_the_whole() -> None:
    mesh, shape = outlay.mesh(a=4, b=2), (64, 64, 64)
    before, after = (outlay.arrays.pencil(shape, mesh, along=along) for along in (2, 1))
    leaf = jax.tree.structure(0)
    given = jax.ShapeDtypeStruct(shape, jnp.float32, sharding=before)
    compiled = _identity(leaf, (after,)).lower(given).compile()
    assert compiled.memory_analysis().temp_size_in_bytes <= 4 * 64**3 // 8 * 2
    assert "all-gather" not in compiled.as_text()


@pytest.mark.parametrize(
    ("shape", "along", "text"),
    [
        ((6, 3, 8), 2, r"2 problems\n  indivisible dim: the bare array\n    dim 0 of \(6, 3, 8\) has size 6"),
        ((8, 8), 0, r"the array \(8, 8\) has 2 dims, the mesh 2 axes \['a', 'b'\]\n  fix: use a mesh of 1 axes"),
        ((8, 8, 8), 3, r"along=3, but the array \(8, 8, 8\) has dims 0 to 2"),
    ],
)
def test_a_shape_without_such_pencils_is_refused(shape: tuple[int, ...], along: int, text: str) -> None:
    with pytest.raises(outlay.errors.PlaceError, match=text):
        outlay.arrays.pencil(shape, outlay.mesh(a=4, b=2), along)
