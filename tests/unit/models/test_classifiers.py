import jax
import jax.numpy as jnp
import numpy as np
import pytest

from outlay.core.paths import flatten_paths
from outlay.models.classifiers import classifier, dropout

pytestmark = pytest.mark.compiles

BATCH = {"image": np.linspace(-1, 1, 6 * 12, dtype=np.float32).reshape(6, 12), "label": np.arange(6) % 3}


@pytest.mark.thorough  # test_model.py
def test_it_computes_in_bfloat16_on_float32_parameters():
    init_params, loss = classifier((12, 8, 3), dtype=jnp.bfloat16)
    params = init_params(jax.random.key(0))
    jaxpr = str(jax.make_jaxpr(lambda p: loss(p, BATCH, None))(params))
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(params)} == {"float32"}
    assert "bf16[6,8] = dot_general" in jaxpr
    assert loss(params, BATCH, None)[0].dtype == jnp.float32


def test_rules_reach_its_parameters_by_layer():
    params = classifier((12, 8, 3))[0](jax.random.key(0))
    shapes = {path: leaf.shape for path, leaf in flatten_paths(params)[0]}
    assert shapes == {
        "layers.0.bias": (8,),
        "layers.0.kernel": (12, 8),
        "layers.1.bias": (3,),
        "layers.1.kernel": (8, 3),
    }


@pytest.mark.thorough  # dropout by keys is below
def test_each_hidden_layer_drops_by_masks_of_its_own(monkeypatch):
    """Two layers with one mask would zero the same features twice."""
    seen = []
    monkeypatch.setattr("outlay.models.classifiers.dropout", lambda x, keys, rate: seen.append(keys) or x)
    init_params, loss = classifier((12, 8, 8, 3), dropout_rate=0.5)
    loss(init_params(jax.random.key(0)), BATCH, jax.random.split(jax.random.key(1), 6))
    first, second = (jax.random.key_data(keys) for keys in seen)
    assert (first != second).any(axis=1).all()


def test_dropout_changes_the_loss_only_when_keys_are_given():
    init_params, loss = classifier((12, 64, 3), dropout_rate=0.5)
    params = init_params(jax.random.key(0))
    plain, _ = loss(params, BATCH, None)
    dropped, _ = loss(params, BATCH, jax.random.split(jax.random.key(1), 6))
    assert (np.abs(plain - dropped) > 1e-4).all()


DROPOUT_KEYS = jax.random.split(jax.random.key(3), 4000)


def test_dropout_zeroes_its_rate_and_keeps_the_mean():
    x = dropout(jnp.ones((4000, 8)), DROPOUT_KEYS, 0.25)
    assert abs(float((x == 0).mean()) - 0.25) < 0.01
    np.testing.assert_allclose(float(x.max()), 1 / 0.75, rtol=1e-6)


def test_a_mask_depends_on_the_key_and_not_on_the_place():
    x = jnp.ones((4000, 8))
    np.testing.assert_array_equal(dropout(x, DROPOUT_KEYS[::-1], 0.5)[::-1], dropout(x, DROPOUT_KEYS, 0.5))


def test_without_keys_nothing_is_dropped():
    assert (dropout(jnp.ones((5, 3)), None, 0.9) == 1).all()


def test_dropout_keeps_the_dtype():
    assert dropout(jnp.ones((4000, 2), jnp.bfloat16), DROPOUT_KEYS, 0.1).dtype == jnp.bfloat16
