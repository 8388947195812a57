"""A plan's leaves as JAX shardings, for any tree with the same paths."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

import outlay
from outlay.arrays.shardings import shardings, under


def test_each_leaf_gets_its_sharding() -> None:
    mesh = outlay.mesh(data=4, model=2)
    tree = {"a": jnp.ones((8, 4)), "b": [jnp.ones(4), jnp.ones(())], "c": jnp.ones(4)}
    layout = outlay.Layout([("a", P("data", "model")), ("b.0", P("model")), ("c", outlay.on(3))])
    found = shardings(layout.plan(tree, mesh), tree, mesh)
    assert found["a"] == NamedSharding(mesh, P("data", "model"))
    assert found["b"] == [NamedSharding(mesh, P("model")), NamedSharding(mesh, P())]
    assert found["c"] == SingleDeviceSharding(mesh.devices.flat[3])


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
