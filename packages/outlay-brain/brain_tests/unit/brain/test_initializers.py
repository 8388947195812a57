import jax
import jax.numpy as jnp
import numpy as np
import pytest

from outlay.brain.initializers import Constant, LogNormal, Normal, NormalizedSparseUniform, SparseUniform, Uniform

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


def test_normal_and_log_normal_have_their_moments_and_keep_the_share():
    values = draw(Normal(3.0, 2.0))
    assert abs(values.mean() - 3) < 0.05
    assert abs(values.std() - 2) < 0.05
    logs = np.log(draw(LogNormal(5.0, 0.5)) - 5)
    assert abs(logs.mean()) < 0.02
    assert abs(logs.std() - 0.5) < 0.02
    for sparse in (Normal(3.0, density=0.3), LogNormal(density=0.3)):
        assert abs((draw(sparse) != 0).mean() - 0.3) < 0.01


def test_bounds_cut_off_zeros_too():
    plain = draw(SparseUniform(2.0, density=0.3))
    np.testing.assert_array_equal(draw(SparseUniform(2.0, 0.3, min_value=0.5, max_value=1.5)), plain.clip(0.5, 1.5))
    assert draw(NormalizedSparseUniform(3.0, max_value=0.01)).max() == np.float32(0.01)


def test_settings_that_no_kernel_can_have_are_told():
    assert SparseUniform(density=0.0).problems() == SparseUniform(min_value=-1.0, max_value=-1.0).problems() == []
    wrong = [
        *(Uniform(min_value=2.0, max_value=1.0), SparseUniform(density=2.0), Normal(density=-1.0)),
        *(NormalizedSparseUniform(norm_axes=axes) for axes in ((), (2,), (0, 0))),
    ]
    assert [initializer.problems()[0].partition("\n")[0] for initializer in wrong] == [
        *("min_value is 2 and max_value is 1", "density is 2", "density is -1"),
        *("norm_axes is []", "norm_axes is [2]", "norm_axes is [0, 0]"),
    ]
