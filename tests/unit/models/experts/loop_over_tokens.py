"""A mixture of experts as a loop over tokens in NumPy float64; it shares nothing with `outlay.experts`."""

import math

import numpy as np


def gated(params, tokens):
    """The expert of these tests, in JAX."""
    import jax

    return (jax.nn.silu(tokens @ params["gate"]) * (tokens @ params["up"])) @ params["down"]


def mixture(params, x, logits, *, top_k, sigmoid=False, normalise=True, bias=None, scale=1.0, factor=None, **_):
    """Return results, load and dropped choices of groups of tokens (G, T, D) with logits (G, T, E)."""
    x, logits = np.asarray(x, np.float64), np.asarray(logits, np.float64)
    params = {name: np.asarray(stack, np.float64) for name, stack in params.items()}
    num_experts = logits.shape[-1]
    results = np.zeros((*x.shape[:2], params["down"].shape[-1]))
    load, dropped = np.zeros((len(x), num_experts), int), np.zeros(len(x), int)
    limit = (
        math.inf if factor is None else min(max(math.ceil(factor * x.shape[1] * top_k / num_experts), 1), x.shape[1])
    )
    for group in range(len(x)):
        taken = [0] * num_experts
        for token in range(x.shape[1]):
            own = logits[group, token]
            scores = 1 / (1 + np.exp(-own)) if sigmoid else np.exp(own - own.max()) / np.exp(own - own.max()).sum()
            ranked = scores if bias is None else scores + np.asarray(bias, np.float64)
            chosen = sorted(range(num_experts), key=lambda one: (-ranked[one], one))[:top_k]
            total = sum(scores[one] for one in chosen) if normalise else 1.0
            for one in chosen:
                load[group, one] += 1
                if taken[one] >= limit:
                    dropped[group] += 1
                    continue
                taken[one] += 1
                gate, up = x[group, token] @ params["gate"][one], x[group, token] @ params["up"][one]
                result = (gate / (1 + np.exp(-gate)) * up) @ params["down"][one]
                results[group, token] += scale * scores[one] / total * result
    return results, load, dropped
