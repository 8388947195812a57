import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from outlay.train.precision import state_in

pytestmark = [pytest.mark.newest, pytest.mark.any_jax]  # test_step.py trains there

PARAMS = {"w": jnp.array([1.0, -2.0, 300.0])}
GRADS = {"w": jnp.array([0.1, 0.2, -0.3])}


def trained(optimizer, params, num_steps=20):
    state = optimizer.init(params)
    for _ in range(num_steps):
        grads = jax.tree.map(lambda g, p: g.astype(p.dtype), GRADS, params)
        updates, state = optimizer.update(grads, state, params)
        params = optax.apply_updates(params, updates)
    return params["w"], state


def test_of_the_parameters_own_dtype_it_changes_nothing():
    plain, _ = trained(optax.adamw(1e-2), PARAMS)
    params, state = trained(state_in(optax.adamw(1e-2), "float32"), PARAMS)
    np.testing.assert_array_equal(plain, params)
    assert state.master is None


def test_master_copies_add_up_steps_that_are_too_small_for_the_parameters():
    """Of 300, a step of a hundredth is lost in bfloat16, whose next number is 302."""
    narrow = jax.tree.map(lambda x: x.astype(jnp.bfloat16), PARAMS)
    exact, _ = trained(optax.sgd(0.5), PARAMS, num_steps=10)
    lost, _ = trained(optax.sgd(0.5), narrow, num_steps=10)
    params, state = trained(state_in(optax.sgd(0.5), "float32"), narrow, num_steps=10)
    assert params.dtype == jnp.bfloat16
    assert lost[2] == 300
    np.testing.assert_array_equal(params, state.master["w"].astype(jnp.bfloat16))
    np.testing.assert_allclose(state.master["w"], exact, rtol=2e-3)


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_moments_are_kept_in_the_dtype_and_follow_those_of_float32(dtype):
    _, plain = trained(optax.adam(1e-2), PARAMS)
    _, state = trained(state_in(optax.adam(1e-2), dtype), PARAMS)
    assert {str(leaf.dtype) for leaf in jax.tree.leaves((state.inner[0].mu, state.inner[0].nu))} == {dtype}
    np.testing.assert_allclose(state.inner[0].mu["w"].astype(np.float32), plain[0].mu["w"], rtol=0.1)
