"""Processor time of `outlay.verify` for a small language model with some 300 arrays, and how it divides into stages.

    python benchmarks/verify_time.py [--compiled]

The step is the user's own: a Flax model of two layers of width 64, Adam over pairs of batches, and three norms of every
gradient, update and parameter as outputs. Nothing is taken from caches of compiled programs. With `--compiled` the
program was compiled before, as after training.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

import outlay

outlay.simulate(8)
jax.config.update("jax_enable_compilation_cache", False)

WIDTH, LAYERS, WORDS, LENGTH, HEADS, BATCH = 64, 2, 128, 32, 4, 16


class Layer(nn.Module):
    """Attention with normalized queries and keys, then a perceptron."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return what the next layer is given."""
        inner = nn.LayerNorm(use_bias=False)(x)
        query, key, value = (nn.DenseGeneral((HEADS, WIDTH // HEADS), use_bias=False)(inner) for _ in range(3))
        query, key = nn.LayerNorm(use_bias=False)(query), nn.LayerNorm(use_bias=False)(key)
        mixed = jax.nn.dot_product_attention(query, key, value, is_causal=True)
        x = x + nn.DenseGeneral(WIDTH, axis=(-2, -1), use_bias=False)(mixed)
        hidden = nn.Dense(4 * WIDTH, use_bias=False)(nn.LayerNorm(use_bias=False)(x))
        return x + nn.Dense(WIDTH, use_bias=False)(nn.gelu(hidden))


class Model(nn.Module):
    """A decoder whose embedding is also its head."""

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Return the scores of the next token."""
        embed = nn.Embed(WORDS, WIDTH)
        x = embed(tokens) + nn.Embed(LENGTH, WIDTH)(jnp.arange(LENGTH))
        for _ in range(LAYERS):
            x = Layer()(x)
        return embed.attend(nn.LayerNorm(use_bias=False)(x))


MODEL = Model()
OPTIMIZER = optax.MultiSteps(optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)), 2)


def init(key: jax.Array) -> dict[str, Any]:
    params = MODEL.init(key, jnp.zeros((1, LENGTH), int))
    return {"params": params, "opt_state": OPTIMIZER.init(params), "step": jnp.zeros((), int)}


def norms(name: str, tree: Any) -> dict[str, jax.Array]:
    leaves = {jax.tree_util.keystr(path, simple=True, separator="/"): x for path, x in jax.tree.leaves_with_path(tree)}
    kinds = {"l2": jnp.linalg.norm, "rms": lambda x: jnp.sqrt(jnp.mean(x * x)), "max": lambda x: jnp.abs(x).max()}
    return {f"{name}/{path}/{kind}": of(x) for path, x in leaves.items() for kind, of in kinds.items()}


def step(state: dict[str, Any], tokens: jax.Array) -> tuple[dict[str, Any], dict[str, jax.Array]]:
    def loss(params: Any) -> jax.Array:
        scores = MODEL.apply(params, tokens)
        return optax.softmax_cross_entropy_with_integer_labels(scores[:, :-1], tokens[:, 1:]).mean()

    value, grads = jax.value_and_grad(loss)(state["params"])
    updates, opt_state = OPTIMIZER.update(grads, state["opt_state"], state["params"])
    params = optax.apply_updates(state["params"], updates)
    metrics = {"loss": value, **norms("grads", grads), **norms("updates", updates), **norms("params", params)}
    return {"params": params, "opt_state": opt_state, "step": state["step"] + 1}, metrics


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--compiled", action="store_true", help="compile the program before the clock starts")
    is_compiled = parser.parse_args().compiled
    rng = np.random.default_rng(0)
    batches = [rng.integers(WORDS, size=(BATCH, LENGTH)).astype(np.int32) for _ in range(3)]
    layout = outlay.fsdp(min_size=64) + outlay.data_parallel()
    program = outlay.program(step, init, batches[0], layout=layout, mesh="data=8")
    if is_compiled:
        _ = program.compiled
    begun = last = time.process_time()
    doing = "preparing"

    def stage(words: str) -> None:
        nonlocal last, doing
        now = time.process_time()
        print(f"{now - last:6.1f} s  {doing}", flush=True)
        last, doing = now, words

    proof = outlay.verify(program, batches=batches, progress=stage)
    stage("")
    print(f"{last - begun:6.1f} s  in all, of {len(proof.leaves)} arrays: {proof.verdict}")


if __name__ == "__main__":
    main()
