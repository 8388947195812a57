"""One training step from a per-sample loss and an optax optimizer: the same numbers on any mesh."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from outlay.core.batch_sum import gradient_of_sums
from outlay.core.constrain import constrain
from outlay.core.errors import ProgramError
from outlay.train.accumulate import sum_over_microbatches
from outlay.train.contract import num_samples, refuse_fixed_params, refuse_wrong_loss
from outlay.train.state import TrainState

Loss = Callable[[Any, Any, jax.Array | None], tuple[jax.Array, dict[str, jax.Array]]]
"""`loss(params, batch, keys) -> (losses, metrics)`; see `train_step`."""


def train_step(
    loss: Loss, optimizer: optax.GradientTransformation, *, accumulate: int = 1
) -> Callable[[TrainState, Any], tuple[TrainState, dict[str, jax.Array]]]:
    """The step of a program that trains: gradients of the mean loss, then the optimizer's update.

    Means are over the global batch, weighted by the batch's `weight` entry (B,) where it has one: a sample of weight
    0, such as padding, does not count. Each sample has a PRNG key of its own, made from the state's key, the step and
    the sample's place in the global batch, so dropout masks depend neither on the mesh nor on `accumulate`.
    Gradients pass through `outlay.constrain(grads, "grads", optional=True)`, so a layout can place them.

    Args:
        loss: `loss(params, batch, keys) -> (losses, metrics)`. The batch is any tree of arrays with leading dim B;
            `keys` are B PRNG keys, or None in evaluation. `losses` has shape (B,), one loss per sample, and
            `metrics` names further arrays of shape (B,).
        optimizer: any optax optimizer.
        accumulate: take the gradients in this many microbatches, one after the other, for a fraction of the memory.
            The result is the same up to rounding: sums are accumulated in float32 and divided once. Microbatches
            take every n-th sample, so that each stays spread over the devices as long as the microbatch size B/n is
            a multiple of the axis that splits the batch.

    Returns:
        `step(state, batch) -> (state, metrics)`: metrics are scalars, the mean `loss` and the mean of each metric.

    Raises:
        ProgramError: when the program is built: the batch does not divide, the loss has other shapes, or parameters
            are no floats.

    Example:
        >>> def loss(params, batch, keys):
        ...     return (batch["x"] @ params["w"] - batch["y"]) ** 2, {}
        >>> optimizer = optax.sgd(0.1)
        >>> step = outlay.train_step(loss, optimizer)
        >>> state = outlay.init_state(lambda key: {"w": jnp.zeros(2)}, optimizer)(jax.random.key(0))
        >>> state, metrics = step(state, {"x": jnp.eye(2), "y": jnp.ones(2)})
        >>> float(metrics["loss"]), state.params["w"].tolist()
        (1.0, [0.10000000149011612, 0.10000000149011612])
    """
    if accumulate < 1:
        raise ProgramError(f"accumulate={accumulate}: a step takes its batch in 1 microbatch or more")

    def step(state: TrainState, batch: Any) -> tuple[TrainState, dict[str, jax.Array]]:
        refuse_fixed_params(state.params)
        num = num_samples(batch)
        key = jax.random.fold_in(state.key, state.step)

        def sums(params: Any, samples: Any) -> dict[str, jax.Array]:
            keys = jax.vmap(jax.random.fold_in, (None, 0))(key, samples["number"])
            return weighted_sums(loss, params, samples["batch"], keys, samples["weight"])

        samples = {"batch": batch, "number": jnp.arange(num), "weight": sample_weights(batch, num)}
        gradient = functools.partial(_gradient, accumulate=accumulate)
        grads, total = gradient_of_sums(gradient, sums, state.params, samples)
        num_counted = total.pop("weight")
        with jax.named_scope("optimizer"):  # the name by which reports know this part of the step
            share = 1 / num_counted  # a division for every entry would cost a pass over the gradients
            grads = jax.tree.map(lambda g, p: (g * share).astype(p.dtype), grads, state.params)
            updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
            params = optax.apply_updates(state.params, updates)
        new_state = dataclasses.replace(state, params=params, opt_state=opt_state, step=state.step + 1)
        return new_state, {name: value / num_counted for name, value in total.items()}

    return step


def weighted_sums(
    loss: Loss, params: Any, batch: Any, keys: jax.Array | None, weights: jax.Array
) -> dict[str, jax.Array]:
    """Sums over a batch, in float32: of `loss`, of every metric, and of the `weight` they are weighted by.

    Args:
        loss: as for `train_step`.
        params: the parameters.
        batch: any tree of arrays with leading dim B.
        keys: B PRNG keys, or None in evaluation.
        weights: how much each sample counts, (B,).
    """
    losses, metrics = loss(params, batch, keys)
    refuse_wrong_loss(losses, metrics, weights.shape)
    per_sample = {"loss": losses, **metrics}
    sums = {name: jnp.sum(weights * values.astype(jnp.float32)) for name, values in per_sample.items()}
    return {**sums, "weight": jnp.sum(weights)}


def sample_weights(batch: Any, num: int) -> jax.Array:
    """How much each of `num` samples counts: the batch's `weight` entry, or 1."""
    if isinstance(batch, Mapping) and "weight" in batch:
        return batch["weight"].astype(jnp.float32)
    return jnp.ones(num, jnp.float32)


def _gradient(
    sums: Callable[[Any, Any], dict[str, jax.Array]], params: Any, samples: Any, *, accumulate: int
) -> tuple[Any, dict[str, jax.Array]]:
    """Gradients of the summed loss, and all sums, microbatch by microbatch."""

    def summed_loss(params: Any, samples: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
        found = sums(params, samples)
        return found["loss"], found

    def one(samples: Any) -> tuple[Any, dict[str, jax.Array]]:
        grads, found = jax.grad(summed_loss, has_aux=True)(params, samples)
        return constrain(jax.tree.map(_at_least_float32, grads), "grads", optional=True), found

    return sum_over_microbatches(one, samples, accumulate)


def _at_least_float32(grad: jax.Array) -> jax.Array:
    return grad.astype(jnp.promote_types(grad.dtype, jnp.float32))
