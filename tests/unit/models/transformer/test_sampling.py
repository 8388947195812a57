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


def sample(window, temperature, num_tokens=9, seed=0):
    drawn = sample_tokens(
        SMALL,
        shaken(SMALL),
        PROMPT,
        jax.random.key(seed),
        num_tokens=num_tokens,
        window=window,
        temperature=temperature,
    )
    return np.asarray(drawn).tolist()


def test_cold_it_takes_the_likeliest_token_that_follows_the_last_ones():
    """The window is shorter than the text, so it has to slide."""
    leaves, text, window = dict(flatten_paths(shaken(SMALL))[0]), PROMPT.tolist(), 5
    for _ in range(9):
        seen = [*text[-(window - 1) :], 0]  # the last is the one to draw
        text.append(int(in_numpy.logits(leaves, seen, SMALL)[-1].argmax()))
    assert sample(window, 1e-4) == text


def test_warm_it_varies_with_the_key_only():
    assert sample(16, 1.0) == sample(16, 1.0) != sample(16, 1.0, seed=1)
    assert sample(16, 1.0)[:2] == PROMPT.tolist()


def test_under_jit_too():
    params = shaken(SMALL)

    def draw(params, key):
        return sample_tokens(SMALL, params, jnp.asarray(PROMPT), key, num_tokens=9, window=16)

    assert jax.jit(draw)(params, jax.random.key(0)).tolist() == sample(16, 1.0)
