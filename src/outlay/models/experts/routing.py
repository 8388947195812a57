"""Which experts each token chooses, with which weights, and what a router pays for an uneven choice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

Gates = Literal["softmax", "sigmoid"]
"""How logits become scores: over all experts together, or of each expert by itself."""


@dataclass(frozen=True)
class Router:
    """How tokens choose.

    Attributes:
        top_k: the number of experts of a token.
        gates: how logits become scores.
        normalise: whether the weights of a token's experts sum to `scale`.
        scale: the factor of the weights.
    """

    top_k: int
    gates: Gates = "softmax"
    normalise: bool = True
    scale: float = 1.0


class Choices(NamedTuple):
    """What the tokens of a group have chosen.

    Attributes:
        experts: the experts of each token, (T, top_k) int32, the best first.
        weights: their weights, (T, top_k) float32.
        balance_loss: E times the sum over experts of the share of choices and the mean score; 1 for an even choice.
        z_loss: the mean over tokens of the squared log-sum-exp of the logits.
    """

    experts: jax.Array
    weights: jax.Array
    balance_loss: jax.Array
    z_loss: jax.Array


def choose(router: Router, logits: jax.Array, bias: jax.Array | None) -> Choices:
    """Let the tokens of a group choose.

    Sources: Fedus et al., Switch Transformers (arXiv:2101.03961), equation 4, for the balance loss; Zoph et al., ST-MoE
    (arXiv:2202.08906), equation 5, for the z loss; DeepSeek-V3 (arXiv:2412.19437), equations 12 to 20, for sigmoid
    gates, the bias, and the balance loss of a sequence.

    Args:
        router: how.
        logits: (T, E), of any float type; scores are float32.
        bias: (E,), added to the scores for the choice alone.

    Example:
        >>> chosen = choose(Router(2), jnp.log(jnp.array([[0.1, 0.6, 0.3]])), None)
        >>> chosen.experts.tolist(), [round(float(x), 3) for x in chosen.weights[0]]
        ([[1, 2]], [0.667, 0.333])
    """
    exact = logits.astype(jnp.float32)
    scores = jax.nn.softmax(exact) if router.gates == "softmax" else jax.nn.sigmoid(exact)
    ranked = scores if bias is None else scores + jax.lax.stop_gradient(bias.astype(jnp.float32))[None]
    experts = jax.lax.top_k(jax.lax.stop_gradient(ranked), router.top_k)[1]
    weights = jnp.take_along_axis(scores, experts, axis=-1)
    if router.normalise:
        weights = weights / _sum(weights)
    shares = num_choices(experts, logits.shape[-1]).astype(jnp.float32) / experts.size
    means = (scores if router.gates == "softmax" else scores / _sum(scores)).mean(axis=0)
    return Choices(
        experts,
        weights * router.scale,
        logits.shape[-1] * (shares * means).sum(),
        jnp.square(jax.nn.logsumexp(exact, axis=-1)).mean(),
    )


def num_choices(experts: jax.Array, num_experts: int) -> jax.Array:
    """Count how often each expert was chosen, (E,) int32."""
    return (experts.reshape(-1, 1) == jnp.arange(num_experts)[None]).sum(axis=0, dtype=jnp.int32)


def _sum(scores: jax.Array) -> jax.Array:
    # Sigmoids of very negative logits are 0, and 0 / 0 is not a number.
    return jnp.maximum(scores.sum(axis=-1, keepdims=True), 1e-20)
