"""Which dims of a result the dims of an operand are."""

import jax
import jax.numpy as jnp
import pytest

from outlay.program.dim_mapping import dims_of


@pytest.mark.parametrize("method", ["set", "add", "subtract", "multiply", "min", "max"])
def test_each_scatter_leaves_the_dims_that_its_indices_do_not_name(method):
    def scattered(x, updates):
        return getattr(x.at[jnp.array([0, 2])], method)(updates, unique_indices=True)

    jaxpr = jax.make_jaxpr(scattered)(jnp.ones((4, 3)), jnp.ones((2, 3)))
    eqn = next(eqn for eqn in jaxpr.eqns if eqn.primitive.name.startswith("scatter"))
    assert dims_of(eqn)[0] == {1: 1}
