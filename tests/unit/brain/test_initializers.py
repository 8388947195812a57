import jax
import jax.numpy as jnp
import numpy as np
import pytest

from outlay.brain.initializers import Constant, NormalizedSparseUniform, SparseUniform, Uniform

SHAPE = (300, 200)


def draw(initializer, dtype=jnp.float32):
    return np.asarray(initializer(jax.random.key(0), SHAPE, dtype))


def test_constant():
    np.testing.assert_array_equal(draw(Constant(3.5)), np.full(SHAPE, 3.5, np.float32))


def test_uniform_fills_the_range():
    values = draw(Uniform(2.0))
    assert values.min() >= 0
    assert values.max() < 2
    assert abs(values.mean() - 1) < 0.02
    assert len(np.unique(values)) > values.size * 0.99


def test_sparse_uniform_keeps_the_share():
    values = draw(SparseUniform(2.0, density=0.3))
    assert abs((values > 0).mean() - 0.3) < 0.01
    assert abs(values[values > 0].mean() - 1) < 0.02


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_normalized_sparse_uniform_sums_to_the_scale(axes):
    values = draw(NormalizedSparseUniform(3.0, density=0.3, norm_axes=axes))
    np.testing.assert_allclose(values.sum(axes), 3.0, rtol=1e-4)
    assert abs((values > 0).mean() - 0.3) < 0.01


def test_nothing_kept_stays_nothing():
    assert not draw(NormalizedSparseUniform(density=0.0)).any()
