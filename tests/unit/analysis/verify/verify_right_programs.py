"""Right programs that are easily taken for wrong ones: they round much, sort, count, draw, or barely move."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax
from tests.unit.analysis.verify.verify_programs import (
    DIM,
    Entry,
    descend,
    errors,
    local_gradients,
    number,
    pmean,
    squares,
    varying,
)


def by_sgd(params: Any, batch: Any, key: Any) -> Any:
    return descend(params, pmean(local_gradients(params, batch))), {"loss": pmean(squares(varying(params), batch))}


def by_sgd_at_a_tiny_rate(params: Any, batch: Any, key: Any) -> Any:
    return descend(params, pmean(local_gradients(params, batch)), 1e-7), {}


def _by(optimizer: Any) -> Entry:
    def step(params: Any, batch: Any, key: Any) -> Any:
        grads = pmean(local_gradients(params, batch))
        updates, _ = optimizer.update(grads, optimizer.init(params), params)
        return optax.apply_updates(params, updates), {}

    return step


def with_gradients_in_bf16(params: Any, batch: Any, key: Any) -> Any:
    grads = jax.tree.map(lambda g: g.astype(jnp.bfloat16), local_gradients(params, batch))
    return descend(params, pmean(grads)), {}


def computed_in_bf16(params: Any, batch: Any, key: Any) -> Any:
    def loss(params: Any, batch: Any) -> Any:
        narrow = jax.tree.map(lambda x: x.astype(jnp.bfloat16), (params, {name: batch[name] for name in "xy"}))
        return squares(*narrow).astype(jnp.float32)

    return descend(params, pmean(local_gradients(params, batch, loss))), {}


def accumulated_in_bf16(params: Any, batch: Any, key: Any) -> Any:
    parts = jax.tree.map(lambda x: x.reshape(4, -1, *x.shape[1:]), batch)
    grads = jax.vmap(lambda part: local_gradients(params, part))(parts)
    return descend(params, pmean(jax.tree.map(lambda g: sum(g.astype(jnp.bfloat16)) / 4, grads))), {}


def synced_statistics(params: Any, batch: Any, key: Any) -> Any:
    mean = pmean(batch["x"].mean(0, keepdims=True))
    scale = jax.lax.rsqrt(pmean(jnp.square(batch["x"] - mean).mean(0, keepdims=True)) + 1e-5).astype(mean.dtype)
    return descend(params, pmean(local_gradients(params, {**batch, "x": (batch["x"] - mean) * scale}))), {}


def clipped_globally(params: Any, batch: Any, key: Any) -> Any:
    grads = pmean(local_gradients(params, batch))
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
    return descend(params, jax.tree.map(lambda g: g * jnp.minimum(1, 0.1 / norm).astype(g.dtype), grads)), {}


def weighted(params: Any, batch: Any, key: Any) -> Any:
    def total(params: Any, batch: Any) -> Any:
        return (jnp.mean(errors(params, batch) ** 2, -1) * batch["kept"].astype(params["w"].dtype)).sum()

    grads = lax.psum(local_gradients(params, batch, total), "data")
    num = lax.psum(batch["kept"].sum(), "data")
    return descend(params, jax.tree.map(lambda g: g / num.astype(g.dtype), grads)), {}


def drawn_by_sample(params: Any, batch: Any, key: Any) -> Any:
    size = len(batch["x"])
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, number() * size + jnp.arange(size))
    mask = jax.vmap(lambda key: jax.random.bernoulli(key, 0.5, (DIM,)))(keys)
    return descend(params, pmean(local_gradients(params, {**batch, "x": jnp.where(mask, batch["x"], 0)}))), {}


def moving_average(params: Any, batch: Any, key: Any) -> Any:
    new = descend(params, pmean(local_gradients(params, batch)))
    return jax.tree.map(
        lambda old, x: old * jnp.asarray(0.99, x.dtype) + x * jnp.asarray(0.01, x.dtype), params, new
    ), {}


def in_int8(params: Any, batch: Any, key: Any) -> Any:
    grads = pmean(local_gradients(params, batch))
    scale = jnp.abs(grads["w"]).max() / 127
    return descend(params, grads), {"quantised": jnp.round(grads["w"] / scale).astype(jnp.int8)}


def mixture_of_experts(params: Any, batch: Any, key: Any) -> Any:
    def loss(params: Any, batch: Any) -> Any:
        scores = jax.nn.softmax(batch["x"] @ params["w"], -1)
        top, which = lax.top_k(scores, 2)
        experts = jnp.tanh(batch["x"].sum(-1, keepdims=True) * params["b"][None])
        return (jnp.take_along_axis(experts, which, -1) * top).mean()

    return descend(params, pmean(local_gradients(params, batch, loss))), {}


def embedding(params: Any, batch: Any, key: Any) -> Any:
    def loss(params: Any, batch: Any) -> Any:
        return jnp.mean((params["w"][batch["token"] % DIM] - batch["y"]) ** 2) + (params["b"] ** 2).sum() * 0.01

    return descend(params, pmean(local_gradients(params, batch, loss))), {}


def frozen(params: Any, batch: Any, key: Any) -> Any:
    grads = pmean(local_gradients(params, batch))
    return {"w": params["w"] - jnp.asarray(1e-3, grads["w"].dtype) * grads["w"], "b": params["b"] + 0}, {}


def evaluated(params: Any, batch: Any, key: Any) -> Any:
    scores = batch["x"] @ params["w"]
    right = lax.psum((scores.argmax(-1) == batch["y"].argmax(-1)).sum(), "data")
    return params, {"right": right, "loss": pmean(squares(varying(params), batch))}


def ring(params: Any, batch: Any, key: Any) -> Any:
    size, total, block = lax.axis_size("data"), 0.0, batch["x"]
    for _ in range(size):
        total = total + (batch["x"] @ block.T).sum()
        block = lax.ppermute(block, "data", [(i, (i + 1) % size) for i in range(size)])
    return params, {"attention": lax.psum(total, "data")}


def shifted_bias_of_a_softmax(params: Any, batch: Any, key: Any) -> Any:
    """A bias whose gradient is zero but for rounding."""

    def loss(params: Any, batch: Any) -> Any:
        return -jax.nn.log_softmax(batch["x"] @ params["w"] + params["b"].sum(), -1)[:, 0].mean()

    return descend(params, pmean(local_gradients(params, batch, loss))), {}


def variance_by_squares(params: Any, batch: Any, key: Any) -> Any:
    far = batch["x"].astype(jnp.float32) + 100
    return params, {"variance": pmean((far**2).mean()) - pmean(far.mean()) ** 2}


def mean_of_zero_mean(params: Any, batch: Any, key: Any) -> Any:
    return params, {"mean": pmean(batch["x"].mean())}


def difference_of_equal_sums(params: Any, batch: Any, key: Any) -> Any:
    return params, {"difference": lax.psum(batch["x"].sum(), "data") - lax.psum(batch["x"][::-1].sum(), "data")}


def exponential(params: Any, batch: Any, key: Any) -> Any:
    return params, {"sum": jnp.log(lax.psum(jnp.exp(batch["x"]).sum(), "data"))}


def largest(params: Any, batch: Any, key: Any) -> Any:
    return params, {"most": lax.pmax(batch["x"].max(), "data"), "least": lax.pmin(batch["x"].min(), "data")}


def ranked(params: Any, batch: Any, key: Any) -> Any:
    whole = lax.all_gather(batch["x"][:, 0], "data", tiled=True)
    order = jnp.argsort(whole)
    return params, {"order": lax.pmax(order, "data"), "median": lax.pmax(whole[order[len(order) // 2]], "data")}


def histogram(params: Any, batch: Any, key: Any) -> Any:
    return params, {"counts": lax.psum(jnp.zeros(12, jnp.int32).at[batch["token"]].add(1), "data")}


def undone_by_a_condition(params: Any, batch: Any, key: Any) -> Any:
    grads = pmean(local_gradients(params, batch))
    good = jnp.all(jnp.stack([jnp.isfinite(g).all() for g in jax.tree.leaves(grads)]))
    return lax.cond(good, lambda: descend(params, grads), lambda: params), {}


def in_a_loop(params: Any, batch: Any, key: Any) -> Any:
    def one(params: Any, _: Any) -> Any:
        return descend(params, pmean(local_gradients(params, batch))), None

    return lax.scan(one, params, None, length=3)[0], {}


RIGHT: dict[str, Entry] = {
    one.__name__: one
    for one in (
        *(by_sgd, by_sgd_at_a_tiny_rate, with_gradients_in_bf16, computed_in_bf16, accumulated_in_bf16),
        *(synced_statistics, clipped_globally, weighted, drawn_by_sample, moving_average, in_int8, in_a_loop),
        *(mixture_of_experts, embedding, frozen, evaluated, ring, shifted_bias_of_a_softmax, variance_by_squares),
        *(mean_of_zero_mean, difference_of_equal_sums, exponential, largest, ranked, histogram, undone_by_a_condition),
    )
} | {
    "by_adam": _by(optax.adam(1e-3)),
    "by_lion": _by(optax.lion(1e-3)),
    "by_adafactor": _by(optax.adafactor(1e-3)),
    "by_lamb": _by(optax.lamb(1e-3)),
}
