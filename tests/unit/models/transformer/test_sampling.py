import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.unit.models.transformer import in_numpy
from tests.unit.models.transformer.test_model import SMALL, shaken

from outlay.core.paths import flatten_paths
from outlay.models.transformer.language_model import sample_tokens

pytestmark = pytest.mark.compiles

PROMPT = np.array([5, 9], np.uint8)


@functools.partial(jax.jit, static_argnames=("window", "temperature"))
def drawn(params, key, window, temperature):
    return sample_tokens(SMALL, params, PROMPT, key, num_tokens=9, window=window, temperature=temperature)


def sample(window, temperature, seed=0):
    return drawn(shaken(SMALL), jax.random.key(seed), window, temperature).tolist()


@pytest.mark.thorough  # as the example of sample_tokens
def test_cold_it_takes_the_likeliest_token_that_follows_the_last_ones():
    """The window is shorter than the text, so it has to slide."""
    leaves, text, window = dict(flatten_paths(shaken(SMALL))[0]), PROMPT.tolist(), 5
    for _ in range(9):
        seen = [*text[-(window - 1) :], 0]  # the last is the one to draw
        text.append(int(in_numpy.logits(leaves, seen, SMALL)[-1].argmax()))
    assert sample(window, 1e-4) == text


def test_warm_it_varies_with_the_key_only():
    text = sample(16, 1.0)
    assert text == sample(16, 1.0) != sample(16, 1.0, seed=1)
    assert text[:2] == PROMPT.tolist()


def test_without_jit_too():
    text = sample_tokens(SMALL, shaken(SMALL), jnp.asarray(PROMPT), jax.random.key(0), num_tokens=9, window=16)
    assert text.tolist() == sample(16, 1.0)
