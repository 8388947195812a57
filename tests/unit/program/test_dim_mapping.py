"""Which dims of a result the dims of an operand are."""

import jax
import jax.numpy as jnp
import pytest

from outlay.program.dim_mapping import dims_of
from outlay.program.mixed_samples import mixing_operations


@pytest.mark.parametrize("method", ["set", "add", "subtract", "multiply", "min", "max"])
def test_each_scatter_leaves_the_dims_that_its_indices_do_not_name(method):
    def scattered(x, updates):
        return getattr(x.at[jnp.array([0, 2])], method)(updates, unique_indices=True)

    jaxpr = jax.make_jaxpr(scattered)(jnp.ones((4, 3)), jnp.ones((2, 3)))
    eqn = next(eqn for eqn in jaxpr.eqns if eqn.primitive.name.startswith("scatter"))
    assert dims_of(eqn)[0] == {1: 1}


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_stacking_puts_a_dim_before_those_from_its_axis(axis):
    jaxpr = jax.make_jaxpr(lambda *parts: jnp.stack(parts, axis))(*[jnp.ones((4, 3))] * 2)
    through = {0: 0, 1: 1}
    for eqn in jaxpr.eqns:  # of one operation or two, as of the version of JAX
        (of_first, *_) = dims_of(eqn)
        through = {dim: of_first[now] for dim, now in through.items()}
    assert through == {dim: dim + (dim >= axis) for dim in (0, 1)}


@pytest.mark.parametrize("axis", [0, 1])
def test_samples_stay_apart_where_arrays_are_stacked_and_taken_apart(axis):
    def apart(x):
        one, other = jnp.unstack(jnp.stack([x, 2 * x], axis), axis=axis)
        return one + other

    of_all, of_few = (jax.make_jaxpr(apart)(jnp.ones((num, 3))) for num in (4, 2))
    assert not [*mixing_operations(of_all, of_few)]


def test_samples_that_are_unstacked_are_taken_together():
    of_all, of_few = (jax.make_jaxpr(lambda x: sum(jnp.unstack(x, axis=0)[:2]))(jnp.ones((num, 3))) for num in (4, 2))
    assert [*mixing_operations(of_all, of_few)]


def test_samples_that_write_to_the_same_places_of_their_own_arrays_stay_apart():
    """`jax.vmap` makes a scatter of an update of a slice."""

    def written(x):
        return jax.lax.dynamic_update_slice_in_dim(x, x[:1], 1, 0)

    of_all, of_few = (jax.make_jaxpr(jax.vmap(written))(jnp.ones((num, 5, 3))) for num in (4, 2))
    assert "scatter" in str(of_all)
    assert not [*mixing_operations(of_all, of_few)]


def test_a_scatter_to_some_samples_takes_them_together():
    of_all, of_few = (jax.make_jaxpr(lambda x: x.at[jnp.array([0, 1])].set(7.0))(jnp.ones((num, 3))) for num in (4, 2))
    assert "scatter" in str(of_all)
    assert [*mixing_operations(of_all, of_few)]
