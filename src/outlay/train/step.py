"""One training step from a per-sample loss and an optax optimizer: the same numbers on any mesh."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from outlay.core.constrain import constrain, gradient_of_sums, per_device
from outlay.core.errors import ProgramError
from outlay.train.contract import called, num_samples, refuse_fixed_params

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
            `metrics` names further arrays of shape (B,), or Python numbers.
        optimizer: any optax optimizer. One that asks for more than gradients, such as `optax.lbfgs`, is given `value`
            (the mean loss), `grad`, and `value_fn`, the mean loss of other parameters over the same batch.
        accumulate: take the gradients in this many microbatches, one after the other, for a fraction of the memory.
            The result is the same up to rounding: sums are accumulated in float32, or in float64 where
            losses, weights or gradients are, and divided once. Microbatches
            take every n-th sample, so that each stays spread over the devices as long as the microbatch size B/n is
            a multiple of the axis that splits the batch.

    Returns:
        `step(state, batch) -> (state, metrics)`: metrics are scalars, the mean `loss` and the mean of each metric.

    Raises:
        ProgramError: when the program is built: the batch does not divide, the loss takes or returns something else,
            parameters are no real floats, or the optimizer asks for more.

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

    optimizer = optax.with_extra_args_support(optimizer)

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
        means = {name: value / num_counted for name, value in total.items()}

        def mean_loss(params: Any) -> jax.Array:
            found = sum_over_microbatches(functools.partial(sums, params), samples, accumulate)
            return found["loss"] / found["weight"]

        with jax.named_scope("optimizer"):  # the name by which reports know this part of the step
            share = 1 / num_counted  # a division for every entry would cost a pass over the gradients
            grads = jax.tree.map(lambda g, p: (g * share).astype(p.dtype), grads, state.params)
            with _asking_for_no_more():
                updates, opt_state = optimizer.update(
                    grads, state.opt_state, state.params, value=means["loss"], grad=grads, value_fn=mean_loss
                )
            params = optax.apply_updates(state.params, updates)
        return dataclasses.replace(state, params=params, opt_state=opt_state, step=state.step + 1), means

    return step


def weighted_sums(
    loss: Loss, params: Any, batch: Any, keys: jax.Array | None, weights: jax.Array
) -> dict[str, jax.Array]:
    """Sums over a batch, in float32 or more: of `loss`, of every metric, and of the `weight` they are weighted by.

    Args:
        loss: as for `train_step`.
        params: the parameters.
        batch: any tree of arrays with leading dim B.
        keys: B PRNG keys, or None in evaluation.
        weights: how much each sample counts, (B,).
    """
    per_sample = called(loss, params, batch, keys, weights.shape)
    sums = {}
    for name, values in per_sample.items():
        dtype = _at_least(weights.dtype, values.dtype)
        sums[name] = jnp.sum(weights.astype(dtype) * values.astype(dtype))
    return {**sums, "weight": jnp.sum(weights.astype(sums["loss"].dtype))}


def sample_weights(batch: Any, num: int) -> jax.Array:
    """How much each of `num` samples counts: the batch's `weight` entry, or 1."""
    if isinstance(batch, Mapping) and "weight" in batch:
        weights = jnp.asarray(batch["weight"])
        return weights.astype(_at_least(weights.dtype))
    return jnp.ones(num, jnp.float32)


@contextlib.contextmanager
def _asking_for_no_more() -> Iterator[None]:
    """Say what an optimizer lacks that asks for more than `train_step` can give."""
    try:
        yield
    except TypeError as error:
        lacking = re.search(r"(\S+\(\)) missing \d+ required keyword-only arguments?: (.*)", str(error))
        if lacking is None:
            raise
        raise ProgramError(
            f"the optimizer's {lacking[1]} asks for {lacking[2]}; outlay.train_step gives an optimizer value= (the "
            "mean loss), grad= and value_fn= (the mean loss of other parameters, over the same batch)"
            "\n  cure: another optimizer, or a step of your own that calls optimizer.update with what it asks for"
        ) from error


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
    return grad.astype(_at_least(grad.dtype))


def _at_least(*dtypes: Any) -> Any:
    """The dtype to sum values of these dtypes in."""
    return functools.reduce(jnp.promote_types, dtypes, jnp.dtype(jnp.float32))


def sum_over_microbatches(sums: Callable[[Any], Any], samples: Any, num_microbatches: int) -> Any:
    """`sums(samples)`, taken microbatch by microbatch and added up; every sample is seen once.

    Args:
        sums: from samples to a tree of sums over them.
        samples: a tree of arrays of leading dim B.
        num_microbatches: how many microbatches; it divides B.

    Raises:
        ProgramError: B does not divide.

    Example:
        >>> sum_over_microbatches(lambda x: x.sum(), jnp.arange(8.0), 4)
        Array(28., dtype=float32)
    """
    if num_microbatches == 1:
        return sums(samples)
    _refuse_indivisible(jax.tree.leaves(samples)[0].shape[0], num_microbatches)
    microbatches = jax.tree.map(lambda x: strided(x, num_microbatches), samples)

    def add(so_far: Any, microbatch: Any) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, so_far, sums(microbatch)), None

    # From the values, not their shapes: on Explicit axes the sums' shardings are part of their types.
    found = jax.eval_shape(lambda m: sums(jax.tree.map(lambda x: x[0], m)), microbatches)
    zeros = per_device(jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype, out_sharding=s.sharding), found))
    return jax.lax.scan(add, zeros, microbatches)[0]


def strided(x: jax.Array, num_microbatches: int) -> jax.Array:
    """Split the first dim (B, …) into microbatches (n, B/n, …) that take every n-th sample.

    Samples are spread over devices in runs of neighbours. Cutting the batch into runs would put each microbatch on a
    few devices, and the compiler would gather the batch to spread it again; every n-th sample is spread already.

    >>> strided(jnp.arange(6), 2).tolist()
    [[0, 2, 4], [1, 3, 5]]
    """
    size = x.shape[0] // num_microbatches
    return jnp.moveaxis(x.reshape(size, num_microbatches, *x.shape[1:]), 1, 0)


def _refuse_indivisible(num_samples: int, num_microbatches: int) -> None:
    if num_samples % num_microbatches == 0:
        return
    fits = [n for n in range(1, num_samples + 1) if num_samples % n == 0]
    below = max(n for n in fits if n < num_microbatches)
    larger = [n for n in fits if n > num_microbatches]
    choices = " or ".join(f"accumulate={n}" for n in [below, *larger[:1]])
    up = -(-num_samples // num_microbatches) * num_microbatches
    raise ProgramError(
        f"a batch of {num_samples} samples cannot be taken in {num_microbatches} equal microbatches: "
        f"{num_samples} / {num_microbatches} leaves {num_samples % num_microbatches} over\n"
        f"  cure: {choices}, or a batch of {up} samples"
    )


@functools.partial(jax.tree_util.register_dataclass, data_fields=["params", "opt_state", "step", "key"], meta_fields=[])
@dataclass(frozen=True)
class TrainState:
    """The state of a `train_step`. Rules reach its leaves as `params.**`, `opt_state.**`, `step` and `key`.

    Attributes:
        params: the parameters, any tree of float arrays.
        opt_state: the optax optimizer's state for them.
        step: how many steps have been taken, a scalar int32.
        key: the PRNG key that every sample's key of every step comes from.
    """

    params: Any
    opt_state: Any
    step: jax.Array
    key: jax.Array


def init_state(
    init_params: Callable[[jax.Array], Any], optimizer: optax.GradientTransformation
) -> Callable[[jax.Array], TrainState]:
    """An init function for `outlay.program`: from a key to a whole `TrainState`.

    Args:
        init_params: from a key to the parameters; pure.
        optimizer: the optimizer whose state goes along.

    Example:
        >>> init = outlay.init_state(lambda key: {"w": jax.random.normal(key, (4, 2))}, optax.adam(1e-3))
        >>> state = init(jax.random.key(0))
        >>> state.opt_state[0].mu["w"].shape, int(state.step)
        ((4, 2), 0)
    """

    def init(key: jax.Array) -> TrainState:
        key_params, key_samples = jax.random.split(key)
        params = init_params(key_params)
        return TrainState(params, optimizer.init(params), jnp.zeros((), jnp.int32), key_samples)

    return init
