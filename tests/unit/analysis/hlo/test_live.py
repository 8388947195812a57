"""Programs compiled here, whose collectives are known exactly."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from tests.unit.report.arrays import mesh_of

from outlay.analysis.hlo.groups import axes_of
from outlay.analysis.hlo.hlo_collectives import collectives_of
from outlay.analysis.hlo.parse import parse_hlo

pytestmark = pytest.mark.newest

SIZES = {"data": 2, "pipe": 2, "model": 2}
MESH = tuple(SIZES.items())
# On a device: 64 rows of 16 float32 numbers.
ROWS, WIDTH = 64, 16
BYTES = ROWS * WIDTH * 4


def compiled_collectives(function, *args):
    module = parse_hlo(jax.jit(function).lower(*args).compile().as_text())
    assert module.skipped == ()
    return [
        (one.kind, axes_of(one.groups, MESH), one.group_size, one.operand_bytes, one.result_bytes, one.count)
        for one in collectives_of(module)
    ]


def on_every_device(function, out_specs=None):
    """The function in a region by hand; each device has its own rows."""
    mesh = mesh_of(**SIZES)
    spec = P(tuple(SIZES))
    out = spec if out_specs is None else out_specs
    mapped = jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=out, check_vma=False)
    rows = jax.ShapeDtypeStruct((8 * ROWS, WIDTH), jnp.float32, sharding=NamedSharding(mesh, spec))
    return compiled_collectives(mapped, rows)


AXES = [("data",), ("pipe",), ("model",), ("data", "model"), ("pipe", "model"), ("data", "pipe", "model")]


@pytest.mark.parametrize("axes", AXES, ids="+".join)
def test_each_kind_over_each_axis(axes):
    n = math.prod(SIZES[axis] for axis in axes)
    assert on_every_device(lambda x: jax.lax.psum(x, axes)) == [("all-reduce", axes, n, BYTES, BYTES, 1)]
    gathered = on_every_device(lambda x: jax.lax.all_gather(x, axes, tiled=True))
    assert gathered == [("all-gather", axes, n, BYTES, n * BYTES, 1)]
    exchanged = on_every_device(lambda x: jax.lax.all_to_all(x, axes, 0, 0, tiled=True))
    assert exchanged == [("all-to-all", axes, n, BYTES, BYTES, 1)]
    scattered = on_every_device(lambda x: jax.lax.psum_scatter(x, axes, tiled=True))
    assert scattered == [("reduce-scatter", axes, n, BYTES, BYTES // n, 1)]


@pytest.mark.parametrize("axis", SIZES)
def test_a_permutation_over_each_axis(axis):
    moved = on_every_device(lambda x: jax.lax.ppermute(x, axis, [(0, 1), (1, 0)]))
    assert moved == [("collective-permute", (axis,), 2, BYTES, BYTES, 1)]


def test_in_a_loop():
    def loop(x):
        return jax.lax.fori_loop(0, 6, lambda _, x: jax.lax.psum(x, "model") * 0.5, x)

    assert on_every_device(loop) == [("all-reduce", ("model",), 2, BYTES, BYTES, 6)]


def test_in_loops_within_loops():
    def loop(x):
        def outer(x, _):
            x = jax.lax.fori_loop(3, 10, lambda _, x: jax.lax.psum(jnp.sin(x), "data"), x)
            return jax.lax.psum(jnp.cos(x), "pipe"), None

        return jax.lax.scan(outer, x, None, length=5)[0]

    assert sorted(on_every_device(loop)) == [
        ("all-reduce", ("data",), 2, BYTES, BYTES, 35),
        ("all-reduce", ("pipe",), 2, BYTES, BYTES, 5),
    ]


def test_a_loop_of_unknown_length_counts_once_and_says_so():
    mesh = mesh_of(**SIZES)

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=P("data"), out_specs=P("data"), check_vma=False)
    def loop(x):
        return jax.lax.while_loop(lambda x: x.sum() > 1, lambda x: jax.lax.psum(x * 0.1, "data"), x)

    module = parse_hlo(jax.jit(loop).lower(jnp.ones((8, 8))).compile().as_text())
    assert [(one.count, one.count_is_exact) for one in collectives_of(module)] == [(1, False)]


def test_a_branch_counts_once_and_says_so():
    mesh = mesh_of(**SIZES)

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=(P(), P("data")), out_specs=P("data"), check_vma=False)
    def either(flag, x):
        return jax.lax.cond(flag, lambda x: jax.lax.psum(x, "data"), lambda x: x * 2, x)

    module = parse_hlo(jax.jit(either).lower(True, jnp.ones((8, 8))).compile().as_text())
    assert [(one.kind, one.count, one.count_is_exact) for one in collectives_of(module)] == [("all-reduce", 1, False)]


def test_several_arrays_at_once():
    def both(x):
        whole, part = jax.lax.psum((x, x[:, :3]), "model")
        return whole + part.sum()

    total = sum(one[3] for one in on_every_device(both))
    assert total == BYTES + ROWS * 3 * 4


def test_no_collective_where_nothing_is_exchanged():
    assert on_every_device(jnp.sin) == []


def test_partitioned_matmul_sums_over_the_split_dim():
    mesh = mesh_of(**SIZES)
    x = jax.ShapeDtypeStruct((32, 64), jnp.float32, sharding=NamedSharding(mesh, P("data", "model")))
    w = jax.ShapeDtypeStruct((64, 48), jnp.float32, sharding=NamedSharding(mesh, P("model")))
    assert compiled_collectives(jnp.matmul, x, w) == [("all-reduce", ("model",), 2, 16 * 48 * 4, 16 * 48 * 4, 1)]


@pytest.mark.parametrize("seed", range(3))
def test_groups_are_positions_even_where_device_ids_are_in_no_order(seed):
    devices = np.random.default_rng(seed).permutation(np.array(jax.devices())).reshape(2, 2, 2)
    mesh = Mesh(devices, tuple(SIZES), axis_types=(AxisType.Auto,) * 3)
    x = jax.ShapeDtypeStruct((32, 64), jnp.float32, sharding=NamedSharding(mesh, P("data", "pipe")))
    w = jax.ShapeDtypeStruct((64, 48), jnp.float32, sharding=NamedSharding(mesh, P("pipe")))
    assert compiled_collectives(jnp.matmul, x, w) == [("all-reduce", ("pipe",), 2, 16 * 48 * 4, 16 * 48 * 4, 1)]
    gather = jax.jit(lambda x: x * 2, out_shardings=NamedSharding(mesh, P("data")))
    module = parse_hlo(gather.lower(x).compile().as_text())
    assert [axes_of(one.groups, MESH) for one in collectives_of(module)] == [("pipe",)]
