import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from tests.unit.models.transformer import in_numpy

from outlay.core.paths import flatten_paths
from outlay.models.transformer.config import TransformerConfig
from outlay.models.transformer.language_model import cross_entropy, definition_of, language_model
from outlay.train.step import init_state, train_step

SMALL = TransformerConfig(32, 24, 3, 6, 2, 4, 40, rotary_base=100.0, dtype="float32")
TOKENS = np.random.default_rng(0).integers(0, 32, size=(3, 9)).astype(np.uint8)
BATCH = {"tokens": TOKENS}


@functools.cache
def compiled_init(config):
    return jax.jit(language_model(config)[0])


@functools.cache
def shaken(config, seed=1):
    """Parameters of which none, such as a scale of one, would hide that it is not used."""
    params = compiled_init(config)(jax.random.key(seed))
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: x + 0.1 * rng.normal(size=x.shape).astype(np.float32), params)


def losses_in_numpy(params, config):
    losses = []
    for tokens in TOKENS:
        logits = in_numpy.logits(dict(flatten_paths(params)[0]), tokens, config)
        chances = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
        losses.append(-np.log(chances[np.arange(len(tokens)), tokens]).mean())
    return np.array(losses)


@pytest.mark.some_cases(1)
@pytest.mark.compiles
@pytest.mark.parametrize("tied", [False, True])
def test_it_computes_what_plain_numpy_computes(tied):
    config = dataclasses.replace(SMALL, tied=tied)
    params = shaken(config)
    losses, metrics = jax.jit(lambda params: language_model(config)[1](params, BATCH, None))(params)
    expected = losses_in_numpy(params, config)
    np.testing.assert_allclose(losses, expected, rtol=2e-6)
    np.testing.assert_allclose(metrics["bits_per_byte"], expected / np.log(2), rtol=2e-6)


def test_no_position_sees_its_own_token_or_a_later_one():
    model = jax.jit(nnx.merge(definition_of(SMALL), shaken(SMALL)))
    other = TOKENS.copy()
    other[:, 5] = (other[:, 5] + 7) % 32
    difference = np.abs(model(TOKENS) - model(other)).max(axis=(0, 2))
    assert difference[:6].max() == 0
    assert difference[6:].min() > 1e-3


@pytest.mark.thorough  # test_storing.py has recomputation
@pytest.mark.compiles
def test_remat_changes_memory_and_no_number():
    params = shaken(SMALL)
    again = dataclasses.replace(SMALL, remat="full")
    plain, rematted = (
        jax.jit(jax.grad(lambda p, config=config: language_model(config)[1](p, BATCH, None)[0].sum()))
        for config in (SMALL, again)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), plain(params), rematted(params))
    residuals = [
        sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(residuals_of(config), params)))
        for config in (SMALL, again)
    ]
    assert residuals[1] < residuals[0] / 2


def residuals_of(config):
    return lambda params: jax.vjp(lambda p: language_model(config)[1](p, BATCH, None)[0], params)[1]


@pytest.mark.thorough  # float32 is compared above
@pytest.mark.compiles
def test_it_computes_in_bfloat16_on_float32_parameters():
    config = dataclasses.replace(SMALL, dtype="bfloat16")
    params = shaken(config)
    losses, _ = jax.jit(lambda params: language_model(config)[1](params, BATCH, None))(params)
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(params)} == {"float32"}
    assert losses.dtype == jnp.float32
    jaxpr = str(jax.make_jaxpr(lambda p: language_model(config)[1](p, BATCH, None))(params))
    dots = [line for line in jaxpr.splitlines() if "= dot_general[" in line]
    assert len(dots) == 10
    # Only scores, and sums over blocks, are asked for in float32, of bfloat16 numbers.
    assert sum(":bf16[" in line for line in dots) == 8
    np.testing.assert_allclose(losses, losses_in_numpy(params, config), rtol=2e-2)


def test_layers_are_traced_once_however_many_there_are():
    deep = dataclasses.replace(SMALL, num_layers=48)
    sizes = []
    for config in (SMALL, deep):
        init_params, loss = language_model(config)
        params = jax.eval_shape(init_params, jax.random.key(0))
        sizes.append(str(jax.make_jaxpr(lambda p, loss=loss: loss(p, BATCH, None))(params)).count("\n"))
    assert sizes[0] == sizes[1]


def test_layers_do_not_start_alike():
    kernel = compiled_init(SMALL)(jax.random.key(0))["layers"]["feed_forward"]["up"]["kernel"][...]
    assert (np.abs(kernel[0] - kernel[1]) > 1e-6).mean() > 0.99


@pytest.mark.thorough
@pytest.mark.compiles
def test_before_training_every_byte_is_about_as_likely():
    """Logits much above one would be certain of something, and the first steps would unlearn it."""
    config = TransformerConfig(256, 64, 4, 4, 2, 16, 128, dtype="float32")
    init_params, loss = language_model(config)
    tokens = np.random.default_rng(0).integers(0, 256, size=(4, 32)).astype(np.uint8)
    _, metrics = jax.jit(lambda key: loss(init_params(key), {"tokens": tokens}, None))(jax.random.key(0))
    assert 8 <= float(metrics["bits_per_byte"].mean()) < 9


def test_the_logits_are_never_kept_in_float32():
    logits = jnp.zeros((2, 4, 64), jnp.bfloat16)
    tokens = jnp.zeros((2, 4), jnp.int32)
    residuals = jax.eval_shape(lambda x: jax.vjp(lambda x: cross_entropy(x, tokens), x)[1], logits)
    assert [leaf.dtype for leaf in jax.tree.leaves(residuals) if leaf.size >= logits.size] == [jnp.bfloat16]


@pytest.mark.thorough  # test_notebook.py learns one
@pytest.mark.compiles
def test_the_transformer_overfits_a_batch():
    _, loss = language_model(SMALL)
    optimizer = optax.adam(1e-2)
    step, state = jax.jit(train_step(loss, optimizer)), init_state(compiled_init(SMALL), optimizer)(jax.random.key(0))
    history = []
    for _ in range(40):
        state, metrics = step(state, BATCH)
        history.append(float(metrics["loss"]))
    assert history[0] > 3
    assert history[-1] < 0.5
