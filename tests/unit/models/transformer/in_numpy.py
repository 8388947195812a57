"""The transformer once more, in plain numpy and float64, position by position, to compare with."""

from __future__ import annotations

import numpy as np


def rms_norm(x, scale):
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-5) * scale


def silu(x):
    return x / (1 + np.exp(-x))


def rotated(x, position, base):
    """One head's vector (head_dim,), its halves taken for the parts of complex numbers."""
    half = len(x) // 2
    angles = position * base ** (-np.arange(half) / half)
    turned = (x[:half] + 1j * x[half:]) * np.exp(1j * angles)
    return np.concatenate([turned.real, turned.imag])


def attended(query, key, value):
    """(T, heads, head_dim) from one sequence's queries, and keys and values of fewer heads."""
    out = np.zeros_like(query)
    num_tokens, num_heads, head_dim = query.shape
    for t in range(num_tokens):
        for head in range(num_heads):
            shared = head * key.shape[1] // num_heads
            scores = [query[t, head] @ key[s, shared] / np.sqrt(head_dim) for s in range(t + 1)]
            weights = np.exp(scores - np.max(scores))
            out[t, head] = sum(w * value[s, shared] for s, w in enumerate(weights / weights.sum()))
    return out


def logits(leaves, tokens, config):
    """Logits (T, vocabulary) of one sequence, from the parameters by path."""
    p = {path: np.asarray(leaf, np.float64) for path, leaf in leaves.items()}
    x = p["embedding.embedding"][[0, *tokens[:-1]]]
    for layer in range(config.num_layers):
        of = {path.removeprefix("layers."): leaf[layer] for path, leaf in p.items() if path.startswith("layers.")}
        normed = rms_norm(x, of["attention_norm.scale"])
        query, key, value = (
            np.tensordot(normed, of[f"attention.{name}.kernel"], 1) for name in ("query", "key", "value")
        )
        for heads in (query, key):
            for t in range(len(tokens)):
                heads[t] = [rotated(vector, t, config.rotary_base) for vector in heads[t]]
        x = x + np.tensordot(attended(query, key, value), of["attention.output.kernel"], 2)
        normed = rms_norm(x, of["feed_forward_norm.scale"])
        gated = silu(normed @ of["feed_forward.gate.kernel"]) * (normed @ of["feed_forward.up.kernel"])
        x = x + gated @ of["feed_forward.down.kernel"]
    head = p["embedding.embedding"].T if config.tied else p["head.kernel"]
    return rms_norm(x, p["norm.scale"]) @ head
