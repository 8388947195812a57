import jax
import jax.numpy as jnp
import numpy as np

from outlay.models.classifier import dropout

KEYS = jax.random.split(jax.random.key(3), 4000)


def test_it_zeroes_the_asked_share_and_keeps_the_mean():
    x = dropout(jnp.ones((4000, 8)), KEYS, 0.25)
    assert abs(float((x == 0).mean()) - 0.25) < 0.01
    np.testing.assert_allclose(float(x.max()), 1 / 0.75, rtol=1e-6)


def test_a_mask_depends_on_the_key_and_not_on_the_place():
    x = jnp.ones((4000, 8))
    np.testing.assert_array_equal(dropout(x, KEYS[::-1], 0.5)[::-1], dropout(x, KEYS, 0.5))


def test_without_keys_nothing_is_dropped():
    assert (dropout(jnp.ones((5, 3)), None, 0.9) == 1).all()


def test_it_keeps_the_dtype():
    assert dropout(jnp.ones((4000, 2), jnp.bfloat16), KEYS, 0.1).dtype == jnp.bfloat16
