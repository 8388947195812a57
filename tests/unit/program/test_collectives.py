import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import outlay

pytestmark = pytest.mark.newest


def on_pieces(function, x, spec, *, out=None, **axes):
    """The function run on each device's piece of x, and the results put together."""
    mesh = outlay.mesh(**axes)
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec if out is None else out))(x)


X = np.random.default_rng(0).normal(3.0, 2.0, size=(4, 16)).astype(np.float32)


@pytest.mark.parametrize(("axis", "spec"), [("i", P(None, "i")), (("i", "j"), P(None, ("i", "j"))), ("j", P("i", "j"))])
def test_mean_over_is_the_mean_of_the_whole_dim(axis, spec):
    got = on_pieces(lambda x: outlay.collectives.mean_over(x, 1, axis), X, spec, out=P(spec[0]), i=4, j=2)
    np.testing.assert_allclose(got, X.mean(axis=1, keepdims=True), rtol=1e-6)


def test_mean_over_counts_what_where_keeps_on_each_device():
    where = np.arange(16) % 5 > 0  # 1 or 2 of each piece of 2
    where[:2] = False  # and none of the first

    def masked(x, where):
        return outlay.collectives.mean_over(x, 1, "i", where=where[None])

    mesh = outlay.mesh(i=8)
    got = jax.jit(jax.shard_map(masked, mesh=mesh, in_specs=(P(None, "i"), P("i")), out_specs=P()))(X, where)
    np.testing.assert_allclose(got, X[:, where].mean(axis=1, keepdims=True), rtol=1e-6)


@pytest.mark.compiles
def test_mean_over_of_half_precision_and_of_integers():
    big = np.full((1, 4096), 1001, np.float16)  # in float16 the sum would be infinite
    got = on_pieces(lambda x: outlay.collectives.mean_over(x, 1, "i"), big, P(None, "i"), out=P(), i=8)
    assert (got.dtype, float(got[0, 0])) == (np.float16, 1001.0)
    counts = on_pieces(
        lambda x: outlay.collectives.mean_over(x, 1, "i"), np.arange(8)[None], P(None, "i"), out=P(), i=8
    )
    assert (counts.dtype, float(counts[0, 0])) == (np.float32, 3.5)


@pytest.mark.compiles
def test_mean_over_has_the_gradient_of_the_mean():
    def summed(x):
        mesh = outlay.mesh(i=8)
        mean = jax.shard_map(
            lambda x: outlay.collectives.mean_over(x**2, 1, "i"), mesh=mesh, in_specs=P(None, "i"), out_specs=P()
        )(x)
        return mean.sum()

    np.testing.assert_allclose(jax.jit(jax.grad(summed))(X), 2 * X / 16, rtol=1e-6)


@pytest.mark.parametrize("by", [1, -1, 3, 0, 9])
def test_ring_shift_moves_up_the_axis_as_roll_does(by):
    got = on_pieces(functools.partial(outlay.collectives.ring_shift, axis="i", by=by), np.arange(8), P("i"), i=8)
    np.testing.assert_array_equal(got, np.roll(np.arange(8), by))


def test_ring_shift_turns_each_row_of_a_mesh_by_itself():
    x = np.arange(8).reshape(4, 2)
    got = on_pieces(lambda x: outlay.collectives.ring_shift(x, "i"), x, P("i", "j"), i=4, j=2)
    np.testing.assert_array_equal(got, np.roll(x, 1, axis=0))


@pytest.mark.parametrize("dim", [0, 1])
def test_sum_scatter_leaves_each_device_its_piece_of_the_sum(dim):
    x = np.random.default_rng(1).integers(0, 9, size=(8, 16, 24))
    out = P("i", None) if dim == 0 else P(None, "i")
    got = on_pieces(lambda x: outlay.collectives.sum_scatter(x[0], "i", dim=dim), x, P("i"), out=out, i=8)
    np.testing.assert_array_equal(got, x.sum(axis=0))


def test_sum_scatter_refuses_a_dim_that_does_not_divide():
    with pytest.raises(
        outlay.errors.ProgramError,
        match=r"dim 1 of \(1, 12\) cannot be cut into 8 .*along 'i': 12 / 8 leaves 4 over\n  fix: .*pad dim 1 to 16",
    ):
        on_pieces(
            lambda x: outlay.collectives.sum_scatter(x, "i", dim=1), np.ones((8, 12)), P("i"), out=P(None, "i"), i=8
        )


def test_axis_coordinates_are_in_the_order_asked_for():
    mesh = outlay.mesh(i=4, j=2)
    where = P(("i", "j"))
    coordinates = jax.shard_map(
        lambda: outlay.collectives.axis_coordinates("j", "i")[None], mesh=mesh, in_specs=(), out_specs=where
    )
    table = jax.jit(coordinates)()
    assert table.dtype == jnp.int32
    assert table.tolist() == [[device % 2, device // 2] for device in range(8)]
