"""Many small steps in one: each has arrays of its own, so that one program holds a whole table of faults or of none.

A step for the pieces of a mesh with the axis `data`: every entry is `(params, batch, key) -> (params, outputs)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import outlay

NUM, DIM, OUT = 64, 8, 4
Entry = Callable[[Any, Any, Any], tuple[Any, Any]]


def batches(num: int, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    mask = (rng.random(NUM) < np.linspace(0.1, 1, NUM)).astype(np.float32)
    return [
        {
            "x": rng.normal(size=(NUM, DIM)).astype(np.float32),
            "y": rng.normal(size=(NUM, OUT)).astype(np.float32),
            "kept": mask,
            "token": rng.integers(0, 12, size=NUM).astype(np.int32),
        }
        for _ in range(num)
    ]


def params_of(number: int, dtype: Any) -> Any:
    """Constants: to compile draws from a key would take a tenth of a proof."""
    weights = np.random.default_rng(number).normal(size=(DIM, OUT)) * 0.3
    return {"b": jnp.full(OUT, 0.1, dtype), "w": jnp.asarray(weights, dtype)}


def varying(tree: Any) -> Any:
    return jax.tree.map(lambda x: lax.pcast(x, "data", to="varying"), tree)


def pmean(tree: Any) -> Any:
    return lax.pmean(tree, "data")


def errors(params: Any, batch: Any) -> Any:
    return batch["x"] @ params["w"] + params["b"][None] - batch["y"]


def squares(params: Any, batch: Any) -> Any:
    return jnp.mean(errors(params, batch) ** 2)


def local_gradients(params: Any, batch: Any, loss: Any = squares) -> Any:
    return jax.grad(loss)(varying(params), batch)


def descend(params: Any, grads: Any, rate: float = 1e-3) -> Any:
    return jax.tree.map(lambda p, g: p - jnp.asarray(rate, p.dtype) * g.astype(p.dtype), params, grads)


def number() -> Any:
    return lax.axis_index("data")


def only(condition: Any, tree: Any) -> Any:
    return jax.tree.map(lambda x: jnp.where(condition, x, jnp.zeros((), x.dtype)), tree)


def is_split() -> bool:
    return lax.axis_size("data") > 1


# --- faults: each is right on one device ---


def summed(params: Any, batch: Any, key: Any) -> Any:
    return descend(params, lax.psum(local_gradients(params, batch), "data")), {}


def summed_at_a_tiny_rate(params: Any, batch: Any, key: Any) -> Any:
    return descend(params, lax.psum(local_gradients(params, batch), "data"), 1e-7), {}


def summed_bias(params: Any, batch: Any, key: Any) -> Any:
    grads = local_gradients(params, batch)
    return descend(params, {"w": pmean(grads["w"]), "b": lax.psum(grads["b"], "data")}), {}


def summed_columns_beside_a_huge_one(params: Any, batch: Any, key: Any) -> Any:
    scale = jnp.asarray([1e6, 1, 1, 1], jnp.float32)
    grads = local_gradients(params, batch, lambda p, b: jnp.mean((errors(p, b) * scale[None]) ** 2))
    parts = {k: (pmean(g[..., :1]), lax.psum(g[..., 1:], "data")) for k, g in grads.items()}
    return descend(params, {k: jnp.concatenate(both, -1) for k, both in parts.items()}, 1e-10), {}


def first_device_only(params: Any, batch: Any, key: Any) -> Any:
    return descend(params, lax.psum(only(number() == 0, local_gradients(params, batch)), "data")), {}


def last_device_dropped(params: Any, batch: Any, key: Any) -> Any:
    counts = jnp.where((number() == lax.axis_size("data") - 1) & is_split(), 0.0, 1.0)
    grads, total = only(counts > 0, local_gradients(params, batch)), lax.psum(counts, "data")
    return descend(params, jax.tree.map(lambda g: g / total.astype(g.dtype), lax.psum(grads, "data"))), {}


def last_sample_dropped(params: Any, batch: Any, key: Any) -> Any:
    fewer = jax.tree.map(lambda x: x[: len(x) - 1] if is_split() else x, batch)
    return descend(params, pmean(local_gradients(params, fewer))), {}


def sample_counted_twice(params: Any, batch: Any, key: Any) -> Any:
    more = jax.tree.map(lambda x: x.at[0].set(x[1]) if is_split() else x, batch)
    return descend(params, pmean(local_gradients(params, more))), {}


def unequal_means(params: Any, batch: Any, key: Any) -> Any:
    def loss(params: Any, batch: Any) -> Any:
        each = jnp.mean(errors(params, batch) ** 2, -1) * batch["kept"].astype(params["w"].dtype)
        return each.sum() / jnp.maximum(batch["kept"].sum(), 1).astype(each.dtype)

    return descend(params, pmean(local_gradients(params, batch, loss))), {}


def local_statistics(params: Any, batch: Any, key: Any) -> Any:
    centred = batch["x"] - batch["x"].mean(0, keepdims=True)
    return descend(params, pmean(local_gradients(params, {**batch, "x": centred}))), {}


def local_variance(params: Any, batch: Any, key: Any) -> Any:
    scaled = batch["x"] / batch["x"].std(0, keepdims=True)
    return descend(params, pmean(local_gradients(params, {**batch, "x": scaled}))), {}


def clipped_locally(params: Any, batch: Any, key: Any) -> Any:
    grads = local_gradients(params, batch)
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
    return descend(params, pmean(jax.tree.map(lambda g: g * jnp.minimum(1, 0.1 / norm).astype(g.dtype), grads))), {}


def same_numbers_everywhere(params: Any, batch: Any, key: Any) -> Any:
    mask = jax.random.bernoulli(key, 0.5, batch["x"].shape)
    return descend(params, pmean(local_gradients(params, {**batch, "x": jnp.where(mask, batch["x"], 0)}))), {}


def drawn_from_gamma(params: Any, batch: Any, key: Any) -> Any:
    """Right: noise that is drawn by the number of the device, by an operation with a loop of its own."""
    noise = jax.random.gamma(jax.random.fold_in(key, number()), 2.0, batch["x"].shape).astype(batch["x"].dtype)
    return descend(params, pmean(local_gradients(params, {**batch, "x": noise * batch["x"]}))), {}


def undivided_microbatches(params: Any, batch: Any, key: Any) -> Any:
    parts = jax.tree.map(lambda x: x.reshape(-1, 8, *x.shape[1:]), batch)
    grads = jax.vmap(lambda part: local_gradients(params, part))(parts)
    return descend(params, pmean(jax.tree.map(lambda g: g.sum(0), grads))), {}


def averaged_twice(params: Any, batch: Any, key: Any) -> Any:
    size = lax.axis_size("data")
    return descend(params, jax.tree.map(lambda g: g / size, pmean(local_gradients(params, batch)))), {}


def not_updated_where_split(params: Any, batch: Any, key: Any) -> Any:
    new = descend(params, pmean(local_gradients(params, batch)))
    return ({**new, "b": params["b"]} if is_split() else new), {}


def wrong_sign(params: Any, batch: Any, key: Any) -> Any:
    return descend(params, pmean(local_gradients(params, batch)), -1e-3 if is_split() else 1e-3), {}


def neighbours_gradient(params: Any, batch: Any, key: Any) -> Any:
    grads = local_gradients(params, batch)
    size = lax.axis_size("data")
    moved = lax.ppermute(grads, "data", [(i, (i + 1) % size) for i in range(size - 1)] or [(0, 0)])
    return descend(params, pmean(moved)), {}


def maximum_for_mean(params: Any, batch: Any, key: Any) -> Any:
    return descend(params, lax.pmax(local_gradients(params, batch), "data")), {}


def squared_after_the_mean(params: Any, batch: Any, key: Any) -> Any:
    moment = jax.tree.map(lambda g: g**2, local_gradients(params, batch))
    return descend(params, pmean(moment)), {}


def loss_of_one_device(params: Any, batch: Any, key: Any) -> Any:
    new = descend(params, pmean(local_gradients(params, batch)))
    loss = squares(varying(params), batch)
    return new, {"loss": lax.psum(jnp.where(number() == 0, loss, 0), "data")}


def samples_miscounted(params: Any, batch: Any, key: Any) -> Any:
    seen = lax.psum(varying(jnp.int32(batch["x"].shape[0] - is_split())), "data")
    return descend(params, pmean(local_gradients(params, batch))), {"seen": seen}


def adam_of_a_sum(params: Any, batch: Any, key: Any) -> Any:
    grads = lax.psum(local_gradients(params, batch), "data")
    moment = jax.tree.map(lambda g: jnp.square(g) * jnp.asarray(0.001, g.dtype), grads)
    step = jax.tree.map(lambda g, v: g / (jnp.sqrt(v) + jnp.asarray(1e-3, g.dtype)), grads, moment)
    return descend(params, step, 1e-4), {}


def top_token_of_each_device(params: Any, batch: Any, key: Any) -> Any:
    counts = jnp.zeros(12, jnp.int32).at[batch["token"]].add(1)
    best = lax.pmax(counts.max(), "data")
    return descend(params, pmean(local_gradients(params, batch))), {"most": best}


FAULTS: tuple[Entry, ...] = (
    summed,
    summed_at_a_tiny_rate,
    summed_bias,
    summed_columns_beside_a_huge_one,
    first_device_only,
    last_device_dropped,
    last_sample_dropped,
    sample_counted_twice,
    unequal_means,
    local_statistics,
    local_variance,
    clipped_locally,
    same_numbers_everywhere,
    undivided_microbatches,
    averaged_twice,
    not_updated_where_split,
    wrong_sign,
    neighbours_gradient,
    maximum_for_mean,
    squared_after_the_mean,
    loss_of_one_device,
    samples_miscounted,
    adam_of_a_sum,
    top_token_of_each_device,
)


def program(entries: Mapping[str, Entry], dtype: Any) -> outlay.Program:
    """All entries in one step, each with its own parameters."""

    def step(state: Any, batch: Any) -> Any:
        floats = {name: batch[name].astype(dtype) for name in ("x", "y")}
        results = {name: entry(state[name], {**batch, **floats}, state["key"]) for name, entry in entries.items()}
        new = {name: one for name, (one, _) in results.items()}
        return {**new, "key": state["key"]}, {name: outputs for name, (_, outputs) in results.items()}

    def make(key: Any) -> Any:
        return {"key": key, **{name: params_of(number, dtype) for number, name in enumerate(entries)}}

    layout, mesh = outlay.data_parallel(), outlay.mesh(data=8)
    return outlay.program(step, make, batches(1)[0], layout=layout, mesh=mesh, mode="manual")


def verdicts(result: outlay.analysis.Verification, names: Any) -> dict[str, set[str]]:
    """The verdicts of each entry's arrays."""
    parts = {name: (f"{name}.", f"outputs.{name}.") for name in names}
    return {
        name: {check.verdict for check in result.checks if check.path.startswith(part)} for name, part in parts.items()
    }
