import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tests.unit.models.transformer import in_numpy

from outlay.models.attention.dot_product import attention
from outlay.models.transformer.config import TransformerConfig
from outlay.models.transformer.layer import Attention, rotate, rotation
from outlay.models.transformer.model import Block

pytestmark = pytest.mark.compiles
attend = functools.partial(attention, causal=True)


def random(*shape):
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


def test_groups_of_query_heads_share_a_key_head_and_see_only_the_past():
    query, key, value = random(2, 7, 6, 4), random(2, 7, 2, 4), random(2, 7, 2, 4)[::-1].copy()
    expected = np.stack([in_numpy.attended(*one) for one in zip(query, key, value, strict=True)])
    np.testing.assert_allclose(attend(*map(jnp.asarray, (query, key, value))), expected, atol=1e-6)


def test_scores_are_float32_whatever_it_computes_in():
    """In bfloat16 this difference of two scores would be rounded away."""
    ones = jnp.ones((1, 2, 1, 64), jnp.bfloat16)
    key = ones.at[0, 0, 0, 0].set(1.0078125)  # the next number
    value = jnp.array([1.0, -1.0], jnp.bfloat16)[None, :, None, None] * ones
    mixed = attend(128 * ones, key, value)
    assert mixed.dtype == jnp.bfloat16
    np.testing.assert_allclose(float(mixed[0, 1, 0, 0]), np.tanh(128 * 0.0078125 / 8 / 2), rtol=1e-2)


def test_a_rotation_turns_complex_numbers():
    x = random(1, 5, 3, 8)
    expected = [[in_numpy.rotated(head, t, 50.0) for head in x[0, t]] for t in range(5)]
    np.testing.assert_allclose(rotate(jnp.asarray(x), *rotation(5, 8, 50.0))[0], np.array(expected), atol=1e-6)


def test_a_score_depends_on_how_far_apart_two_tokens_are():
    query, key = (jnp.broadcast_to(random(8)[None, None, None], (1, 9, 1, 8)) for _ in range(2))
    turned = [rotate(x, *rotation(9, 8, 100.0))[0, :, 0] for x in (query, key)]
    scores = np.asarray(turned[0] @ turned[1].T)
    for apart in range(-8, 9):
        assert np.ptp(np.diagonal(scores, apart)) < 1e-4
    assert np.ptp(scores[0]) > 0.1


@pytest.mark.parametrize("remat", ["none", "full"])
def test_the_scores_are_not_kept_for_the_backward_pass(remat):
    config = TransformerConfig(8, 8, 1, 2, 1, 4, 8, dtype="float32", remat=remat)
    module, num_tokens = Attention(config, rngs=nnx.Rngs(0)), 64
    angles = rotation(num_tokens, config.head_dim, 100.0)

    def forward(x):
        return module(x, angles)

    whole = jax.checkpoint(forward) if remat == "full" else forward  # as the model does it, layer by layer
    residuals = jax.eval_shape(lambda x: jax.vjp(whole, x)[1], jnp.ones((1, num_tokens, config.width)))
    assert max(leaf.size for leaf in jax.tree.leaves(residuals)) < num_tokens**2


def test_the_branches_of_all_layers_start_so_that_they_add_up_to_order_one():
    config = TransformerConfig(8, 64, 8, 8, 2, 8, 256)
    block = Block(config, rngs=nnx.Rngs(0))
    for kernel, num_inputs in ((block.attention.output.kernel, 64), (block.feed_forward.down.kernel, 256)):
        np.testing.assert_allclose(kernel[...].var() * num_inputs * 2 * config.num_layers, 1.0, rtol=0.1)
