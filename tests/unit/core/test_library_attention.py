"""What modules of libraries offer of their attention, and that they compute it themselves if nobody takes it."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from outlay.core.attention_calls import AttentionCall, current_attend
from outlay.core.context_values import within
from outlay.core.library_attention import taking_modules


def offered(call: Any) -> tuple[list[AttentionCall], Any]:
    """Return the calls of attention that a function makes, and its result."""
    calls: list[AttentionCall] = []
    with within(current_attend, calls.append), taking_modules():
        return calls, call()


def test_masks_of_linen_with_several_dims_of_samples() -> None:
    x = jax.random.normal(jax.random.key(0), (2, 3, 5, 4))
    module = nn.MultiHeadDotProductAttention(num_heads=2, dropout_rate=0.5, deterministic=True)
    params = module.init(jax.random.key(1), x)
    masks = [nn.make_causal_mask(x[..., 0]), jnp.ones((3, 1, 5, 5)), jnp.ones((1, 5, 5))]
    for mask, batch in zip(masks, (6, 6, 1), strict=True):
        [call], result = offered(lambda mask=mask: module.apply(params, x, mask=mask))
        assert (call.query.shape, call.not_split) == ((6, 5, 2, 2), ())
        assert [(term.shape, term.dtype) for term in call.terms] == [((batch, 1, 5, 5), bool)]
        np.testing.assert_array_equal(result, module.apply(params, x, mask=mask))


def test_dropout_and_weights_that_are_shown_are_named() -> None:
    x, key = jnp.ones((2, 5, 4)), jax.random.key(0)
    module = nn.MultiHeadDotProductAttention(num_heads=2, dropout_rate=0.5)
    params = module.init(key, x, deterministic=True)
    [call], _ = offered(lambda: module.apply(params, x, deterministic=False, rngs={"dropout": key}))
    assert call.not_split == ("dropout",)
    [call], _ = offered(lambda: module.apply(params, x, deterministic=True, sow_weights=True))
    assert call.not_split == ("sow_weights",)
    equinox = eqx.nn.MultiheadAttention(2, 4, dropout_p=0.5, key=key)
    assert offered(lambda: equinox(x[0], x[0], x[0], key=key))[0][0].not_split == ("dropout",)
    assert offered(lambda: equinox(x[0], x[0], x[0], inference=True))[0][0].not_split == ()


def test_values_of_another_size_are_named_and_own_functions_left_alone() -> None:
    x, key = jnp.ones((5, 4)), jax.random.key(0)
    equinox = eqx.nn.MultiheadAttention(2, 4, vo_size=3, key=key)
    assert offered(lambda: equinox(x, x, x))[0][0].not_split == ("values of another size or dtype than its keys",)
    linen = nn.MultiHeadDotProductAttention(num_heads=2, attention_fn=lambda query, key, value: value)
    assert offered(lambda: linen.init(key, x[None]))[0] == []
