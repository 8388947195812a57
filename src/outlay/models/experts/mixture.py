"""A mixture of experts from the function of one expert, with or without a limit of tokens for each."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from outlay.core.constrain import name
from outlay.core.primitives import EACH_TOKEN
from outlay.core.public_names import called_as
from outlay.models.experts.blocks import Expert, by_blocks, without_settings
from outlay.models.experts.check_experts import check_experts
from outlay.models.experts.routing import Choices, Gates, Router, choose, num_choices
from outlay.models.experts.routing_facts import Routing
from outlay.models.experts.slots import Slots, block_size, capacity_of, in_blocks, pick, with_capacity
from outlay.models.experts.token_shards import ROWS, token_shards


@called_as(
    "outlay.experts(expert, params, x, x @ kernel, top_k=2)",
    k="top_k=",
    num_experts="dim 0 of params, and the last dim of router",
    capacity="capacity_factor=",
    logits="router, the fourth argument",
)
def experts(
    expert: Expert,
    params: Any,
    x: jax.Array,
    router: jax.Array,
    *,
    top_k: int = 2,
    gates: Gates = "softmax",
    normalise: bool | None = None,
    bias: jax.Array | None = None,
    scale: float = 1.0,
    capacity_factor: float | None = None,
    max_dropped: float | None = None,
    groups: int | None = None,
) -> tuple[jax.Array, Routing]:
    """Send each token through its `top_k` experts, and add up what they return, times their weights.

    FLOPs and memory are those of the experts that tokens choose, not of all. Without a capacity nothing is dropped:
    tokens are ordered by expert and taken through them in blocks. With one, each expert takes equally many tokens of
    each group, the first that chose it, and the rest are dropped; that is what a layout can split over devices by
    expert (`outlay.layout.expert_parallel`), with the same tokens dropped on every mesh.

    Experts that see every token, as in DeepSeek's models, are plain code: `y + shared(x)`.

    Args:
        expert: `expert(params, tokens) -> results` of one expert, (N, D) to (N, D'); it treats each token by itself.
        params: a tree of stacks, with one entry of dim 0 for each of E experts: arrays, or a stacked module of NNX or
            Equinox, whose settings stay as they are.
        x: the tokens, (…, T, D). What comes before the last two dims, such as samples, counts groups.
        router: the logits of each token, (…, T, E), such as `x @ kernel`.
        top_k: the number of experts of a token.
        gates: how logits become scores: `softmax` over the experts, as in Mixtral and Qwen; `sigmoid` of each, as in
            DeepSeek-V3. Scores are float32.
        normalise: whether the weights of a token's experts sum to `scale`; by default if `top_k` is more than 1: a
            single weight that is always 1 would leave the router without a gradient.
        bias: numbers (E,) added to the scores for the choice alone, without a gradient, by which DeepSeek-V3 balances
            its load.
        scale: the factor of the weights.
        capacity_factor: how many times the average an expert takes, of each group: `capacity_factor * T * top_k / E`
            tokens, rounded up, at most T. None for no limit.
        max_dropped: refuse a capacity that drops more than this share of the choices in any case; what the tokens'
            choices add to that is in `Routing.dropped`.
        groups: take capacity, losses and counts of this many groups of neighbouring tokens instead.

    Returns:
        The results (…, T, D') in the dtype of the expert's, and a `Routing`, whose entries have the leading dims of
        `x`, or `(groups,)`.

    Raises:
        ProgramError: shapes do not fit together, or a number is out of range; the message lists all problems.

    Example:
        >>> def expert(params, tokens):
        ...     return jax.nn.silu(tokens @ params["up"]) @ params["down"]
        >>> key = jax.random.key(0)
        >>> params = {"up": jax.random.normal(key, (4, 8, 16)), "down": jax.random.normal(key, (4, 16, 8))}
        >>> x, kernel = jax.random.normal(key, (2, 6, 8)), jax.random.normal(key, (8, 4))
        >>> y, routing = outlay.experts(expert, params, x, x @ kernel, top_k=2)
        >>> y.shape, routing.load.sum(axis=-1).tolist(), routing.dropped.tolist()
        ((2, 6, 8), [12, 12], [0, 0])
        >>> _, routing = outlay.experts(expert, params, x, x @ kernel, top_k=2, capacity_factor=1.0)
        >>> bool(routing.dropped.sum() > 0)
        True
    """
    num_experts = check_experts(
        expert, params, x, router, top_k, gates, bias, capacity_factor, max_dropped=max_dropped, groups=groups
    )
    expert, params = without_settings(expert, params)
    leading = x.shape[:-2] if groups is None else (groups,)
    tokens = x.reshape(math.prod(leading), math.prod(x.shape[:-1]) // math.prod(leading), x.shape[-1])
    how = Router(top_k, gates, top_k > 1 if normalise is None else normalise, scale)
    with jax.named_scope("experts"):
        logits = router.reshape(*tokens.shape[:2], num_experts)
        choices = jax.vmap(lambda logits: choose(how, logits, bias))(logits)
        if capacity_factor is None:
            results, dropped = _without_limit(expert, params, tokens, choices, num_experts), jnp.zeros(len(tokens), int)
        else:
            capacity = capacity_of(capacity_factor, tokens.shape[1], top_k, num_experts)
            results, dropped = _with_limit(expert, params, tokens, choices, num_experts, capacity)
    load = jax.vmap(lambda each: num_choices(each, num_experts))(choices.experts)
    routing = Routing(
        choices.balance_loss.reshape(leading),
        choices.z_loss.reshape(leading),
        load.reshape(*leading, num_experts),
        dropped.astype(jnp.int32).reshape(leading),
        tokens.shape[1] * top_k,
    )
    return results.reshape(*x.shape[:-1], results.shape[-1]), routing


def _with_limit(
    expert: Expert, params: Any, tokens: jax.Array, choices: Choices, num_experts: int, capacity: int
) -> tuple[jax.Array, jax.Array]:
    """Return results (G, T, D') and the number of dropped choices (G,)."""
    slots = jax.vmap(lambda each: with_capacity(each, num_experts, capacity))(choices.experts)
    # Two names for the same values: at the devices of their tokens, and at those of their experts.
    received = name(name(jax.vmap(pick)(tokens, slots.tokens), "expert_tokens.sent"), "expert_tokens.received")
    computed = jax.vmap(jax.vmap(expert), in_axes=(None, 0))(params, received)
    returned = name(name(computed, "expert_tokens.computed"), "expert_tokens.returned")
    rows = returned.reshape(len(tokens), -1, returned.shape[-1])
    return jax.vmap(_combined)(rows, slots, choices.weights), (~slots.is_sent).sum(axis=(1, 2))


def _without_limit(expert: Expert, params: Any, tokens: jax.Array, choices: Choices, num_experts: int) -> jax.Array:
    """Return results (G, T, D'): each device orders its own tokens."""
    shards = token_shards()
    num = math.gcd(shards.num, len(tokens))

    def own(tokens: jax.Array, experts: jax.Array, weights: jax.Array) -> jax.Array:
        slots = in_blocks(experts, num_experts, block_size(experts.size, num_experts))
        rows = by_blocks(expert, params, pick(tokens, slots.tokens), slots.experts)
        return _combined(rows.reshape(-1, rows.shape[-1]), slots, weights)

    def each_token(*given: jax.Array) -> jax.Array:
        given = tuple(each.reshape(num, -1, each.shape[-1]) for each in given)
        return jax.vmap(own)(*(shards.split(given) if num > 1 else given)).reshape(*tokens.shape[:2], -1)

    # Under this name it is known to treat each group by itself, which its sorting hides.
    each_token.__name__ = EACH_TOKEN
    return jax.jit(each_token)(name(tokens, ROWS), choices.experts, choices.weights)


def _combined(rows: jax.Array, slots: Slots, weights: jax.Array) -> jax.Array:
    """Add up what the experts of each token returned, in float32."""
    weights = jnp.where(slots.is_sent, weights, 0.0)
    return (weights[..., None] * pick(rows, slots.slots).astype(jnp.float32)).sum(axis=1).astype(rows.dtype)
