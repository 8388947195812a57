"""Make a training step from a loss and an optax optimizer, with the same numbers on any mesh."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from outlay.core.array_leaves import arrays_only
from outlay.core.as_written import InitAsWritten, LossAsWritten, current_judge, observed
from outlay.core.constrain import constrain, gradient_of_sums, per_device
from outlay.core.error_types import ProgramError
from outlay.core.paths import flatten_paths
from outlay.program.compiler_options import MICROBATCHES
from outlay.train.contract import (
    check_metric_names,
    check_model_state,
    check_names_differ,
    check_trainable,
    num_samples,
    optimizer_state,
)
from outlay.train.objective import Loss, Objective, Reduction, at_least, sample_weights


def train_step(
    loss: Loss,
    optimizer: optax.GradientTransformation,
    *,
    accumulate: int = 1,
    model_state: bool = False,
    groups: int | None = None,
    reduction: Reduction | None = None,
    metrics: Collection[str] = (),
) -> Callable[[TrainState, Any], tuple[TrainState, dict[str, jax.Array]]]:
    """Make a training step: gradients of the mean loss, then the optimizer's update.

    Means are over the global batch, weighted by the batch's `weight` entry (B,) if present: a sample of weight
    0, such as padding, does not count. Each sample has its own PRNG key, derived from the state's key, the step and
    the sample's position in the global batch, so dropout masks depend neither on the mesh nor on `accumulate`.
    Gradients pass through `outlay.constrain(grads, "grads", optional=True)`, so a layout can place them.

    Args:
        loss: `loss(params, batch, keys) -> (losses, metrics)`. The batch is any tree of arrays with leading dim B;
            `keys` are B PRNG keys, or None in evaluation. `losses` has shape (B,), one loss per sample, and
            `metrics` has further arrays of shape (B,), or (B, K) for rows of numbers such as one-hot classes, or
            Python numbers.
        optimizer: any optax optimizer. An optimizer that needs more than gradients, such as `optax.lbfgs`, gets `value`
            (the mean loss), `grad`, and `value_fn`, the mean loss of other parameters over the same batch.
        accumulate: compute the gradients in this many microbatches, one after the other, for a fraction of the memory.
            The result is the same up to rounding: sums are accumulated in float32, or in float64 if
            losses, weights or gradients are, and divided once. A microbatch takes every n-th sample, so that it stays
            spread over the devices if the microbatch size B/n is a multiple of the axis that splits the batch. A loss
            that mixes samples sees one microbatch.
        model_state: the loss has the form `loss(params, model_state, batch, keys) -> (losses, metrics, model_state)`.
            The new state goes into `TrainState.model_state`, from microbatch to microbatch and from step to step.
            Batch statistics, such as those of BatchNorm, are over the whole batch in every mode.
        groups: call the loss on this many groups of neighbouring samples instead, each as a separate batch: statistics
            are per group, and the new states are averaged. The numbers depend on `groups` but not on the mesh; in mode
            manual each device takes whole groups, and BatchNorm needs no collective.
        reduction: the loss and its metrics return one number for the batch, the `mean` or the `sum`; this determines
            how microbatches are combined. The loss must handle the batch's `weight` itself.
        metrics: also return these metrics of the step: `grad_norm`, `param_norm` (of the new parameters),
            `update_norm`, and the `learning_rate` of an optimizer made with `optax.inject_hyperparams`.

    Returns:
        `step(state, batch) -> (state, metrics)`: the mean `loss`, a scalar, and the mean of each metric.

    Raises:
        ProgramError: when the program is built: the batch does not divide, the loss takes or returns something else,
            parameters are not floats, a metric is unknown, or the optimizer needs other arguments.

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
        raise ProgramError(f"accumulate={accumulate}: a step needs at least 1 microbatch")
    check_metric_names(metrics, tuple(_OF_THE_STEP))

    written = LossAsWritten(loss, optimizer, accumulate, model_state, groups, reduction, tuple(metrics))
    objective = Objective(loss, model_state, reduction, groups)
    optimizer = optax.with_extra_args_support(optimizer)  # most take no `value`, `grad` and `value_fn`

    def step(state: TrainState, batch: Any) -> tuple[TrainState, dict[str, jax.Array]]:
        if (judge := current_judge()) is not None:
            return judge.step(written, state, batch)
        state = arrays_only(state)
        check_trainable(state.params)
        check_model_state(state.model_state, taken=model_state)
        num = num_samples(batch)
        # Fold in the step and the position in the global batch, never a device index: the random numbers, such as
        # dropout masks, must be the same on every mesh.
        key = jax.random.fold_in(state.key, state.step)

        def sums(params: Any, samples: Any, model_state: Any) -> tuple[dict[str, jax.Array], Any]:
            keys = jax.vmap(jax.random.fold_in, (None, 0))(key, samples["number"])
            return objective.sums(params, model_state, samples["batch"], keys, samples["weight"])

        samples = {"batch": batch, "number": jnp.arange(num), "weight": sample_weights(batch, num)}
        gradient = functools.partial(_gradient, accumulate=accumulate, carried=state.model_state)
        grads, total, new_model_state = gradient_of_sums(gradient, sums, state.params, samples)
        # Divide once, by the weight of the global batch: a mean of means is wrong if weights differ (decision 7). With
        # the reduction "sum" that gives the mean over the equal microbatches of their sums, so multiply by their
        # number.
        share = (accumulate if reduction == "sum" else 1) / total["weight"]
        means = {name: value / total["weight"] for name, value in total.items() if name != "weight"}
        means["loss"] = total["loss"] * share if reduction == "sum" else means["loss"]

        def loss_of(params: Any) -> jax.Array:
            over = functools.partial(sums, params)
            totals, _ = sum_over_microbatches(over, samples, accumulate, state.model_state)
            return totals["loss"] * ((accumulate if reduction == "sum" else 1) / totals["weight"])

        with jax.named_scope("optimizer"):  # reports recognize the phase by this name
            grads = observed(jax.tree.map(lambda g, p: _downhill(g * share).astype(p.dtype), grads, state.params))
            with _asking_for_no_more():
                updates, opt_state = optimizer.update(
                    grads, state.opt_state, state.params, value=means["loss"], grad=grads, value_fn=loss_of
                )
            params = optax.apply_updates(state.params, updates)
            new = dataclasses.replace(
                state, params=params, opt_state=opt_state, step=state.step + 1, model_state=new_model_state
            )
            check_names_differ(means, metrics)
            means |= {name: _OF_THE_STEP[name](grads, updates, new) for name in metrics}
        return new, means

    return step


def _downhill(grad: jax.Array) -> jax.Array:
    """Conjugate a complex gradient: JAX returns the conjugate of the direction that optimizers expect."""
    return jnp.conj(grad) if jnp.issubdtype(grad.dtype, jnp.complexfloating) else grad


def _learning_rate(state: TrainState) -> jax.Array:
    leaves = flatten_paths(state.opt_state)[0]
    rates = [(path, leaf) for path, leaf in leaves if path.split(".")[-1] == "learning_rate"]
    if len(rates) != 1:
        raise ProgramError(
            f"the metric learning_rate: the optimizer's state holds {len(rates)} of that name"
            + "".join(f"\n  opt_state.{path}" for path, _ in rates)
            + "\n  fix: optax.inject_hyperparams(optax.adam)(learning_rate=schedule), once, or leave it out"
        )
    return rates[0][1]


_OF_THE_STEP: dict[str, Callable[[Any, Any, TrainState], jax.Array]] = {
    "grad_norm": lambda grads, updates, state: optax.tree.norm(grads),
    "param_norm": lambda grads, updates, state: optax.tree.norm(state.params),
    "update_norm": lambda grads, updates, state: optax.tree.norm(updates),
    "learning_rate": lambda grads, updates, state: _learning_rate(state),
}
"""The metrics of a step, by name."""


@contextlib.contextmanager
def _asking_for_no_more() -> Iterator[None]:
    """Explain the error of an optimizer that needs arguments which `train_step` does not provide."""
    try:
        yield
    except TypeError as error:
        lacking = re.search(r"(\S+\(\)) missing \d+ required keyword-only arguments?: (.*)", str(error))
        if lacking is None:
            raise
        raise ProgramError(
            f"the optimizer's {lacking[1]} needs {lacking[2]}; outlay.train_step passes value= (the "
            "mean loss), grad= and value_fn= (the mean loss of other parameters, over the same batch)"
            "\n  fix: use another optimizer, or write your own step that passes these to optimizer.update"
        ) from error


def _gradient(
    sums: Callable[..., tuple[dict[str, jax.Array], Any]], params: Any, samples: Any, *, accumulate: int, carried: Any
) -> tuple[Any, dict[str, jax.Array], Any]:
    """Compute gradients of the summed loss, all sums, and the last model state, microbatch by microbatch."""

    def summed_loss(params: Any, samples: Any, carried: Any) -> tuple[jax.Array, Any]:
        summed, carried = sums(params, samples, carried)
        return summed["loss"], (summed, carried)

    def one(samples: Any, carried: Any) -> tuple[Any, Any]:
        grads, (summed, carried) = jax.grad(summed_loss, has_aux=True)(params, samples, carried)
        grads = constrain(jax.tree.map(_at_least_float32, grads), "grads", optional=True)
        return (grads, summed), carried

    def placed(sums_so_far: Any) -> Any:
        grads, summed = sums_so_far
        return constrain(grads, "grads", optional=True), summed

    (grads, summed), carried = sum_over_microbatches(one, samples, accumulate, carried, placed)
    return grads, summed, carried


def _at_least_float32(grad: jax.Array) -> jax.Array:
    return grad.astype(at_least(grad.dtype))


def sum_over_microbatches(
    sums: Callable[[Any, Any], tuple[Any, Any]],
    samples: Any,
    num_microbatches: int,
    carried: Any = None,
    placed: Callable[[Any], Any] = lambda sums_so_far: sums_so_far,
) -> tuple[Any, Any]:
    """Sum `sums(samples, carried)` over microbatches; every sample counts once.

    Args:
        sums: maps samples and a carry to a tree of sums over the samples and the next carry.
        samples: a tree of arrays with leading dim B.
        num_microbatches: the number of microbatches; it must divide B.
        carried: the initial carry.
        placed: constrains where the sums live.

    Returns:
        The sums, and the last carry.

    Raises:
        ProgramError: `num_microbatches` does not divide B.

    Example:
        >>> sum_over_microbatches(lambda x, last: (x.sum(), x[-1]), jnp.arange(8.0), 4, 0.0)
        (Array(28., dtype=float32), Array(7., dtype=float32))
    """
    carried = per_device(jax.tree.map(jnp.asarray, carried))
    if num_microbatches == 1:
        return sums(samples, carried)
    _check_divisible(jax.tree.leaves(samples)[0].shape[0], num_microbatches)
    microbatches = jax.tree.map(lambda x: strided(x, num_microbatches), samples)

    def add(so_far: Any, microbatch: Any) -> tuple[Any, None]:
        total, carried = so_far
        shapes, carried = sums(microbatch, carried)
        return (placed(jax.tree.map(jnp.add, total, shapes)), carried), None

    # Evaluate on the values, not on their shapes: on Explicit axes, shardings are part of the types.
    shapes = jax.eval_shape(lambda m, c: sums(jax.tree.map(lambda x: x[0], m), c)[0], microbatches, carried)
    zeros = per_device(jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype, out_sharding=s.sharding), shapes))
    # By this name a program's compiler options know the loop, which XLA must not pipeline (decision 54).
    with jax.named_scope(MICROBATCHES):
        (total, carried), _ = jax.lax.scan(add, (zeros, carried), microbatches)
        # Constrained here too: the compiler would otherwise let the loop carry the sums as their reader takes them.
        return placed(total), carried


def strided(x: jax.Array, num_microbatches: int) -> jax.Array:
    """Split the first dim (B, …) into microbatches (n, B/n, …) that take every n-th sample.

    Each device has a contiguous block of samples. Contiguous microbatches would each live on a few devices, and the
    compiler would gather the batch to spread them again; every n-th sample is already spread.

    >>> strided(jnp.arange(6), 2).tolist()
    [[0, 2, 4], [1, 3, 5]]
    """
    size = x.shape[0] // num_microbatches
    return jnp.moveaxis(x.reshape(size, num_microbatches, *x.shape[1:]), 1, 0)


def _check_divisible(num_samples: int, num_microbatches: int) -> None:
    if num_samples % num_microbatches == 0:
        return
    fits = [n for n in range(1, num_samples + 1) if num_samples % n == 0]
    below = max(n for n in fits if n < num_microbatches)
    larger = [n for n in fits if n > num_microbatches]
    choices = " or ".join(f"accumulate={n}" for n in [below, *larger[:1]])
    up = -(-num_samples // num_microbatches) * num_microbatches
    raise ProgramError(
        f"a batch of {num_samples} samples cannot be split into {num_microbatches} equal microbatches: "
        f"{num_samples} / {num_microbatches} leaves {num_samples % num_microbatches} over\n"
        f"  fix: {choices}, or a batch of {up} samples"
    )


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["params", "opt_state", "step", "key", "model_state"], meta_fields=[]
)
@dataclass(frozen=True)
class TrainState:
    """The state of a `train_step`. Rules reach its leaves as `params.**`, `opt_state.**`, `step` and `key`.

    Attributes:
        params: the parameters, any tree of float arrays.
        opt_state: the state of the optax optimizer.
        step: the number of steps taken, a scalar int32.
        key: the PRNG key from which the keys of all samples and steps are derived.
        model_state: the state of the model itself, such as running averages; None if it has none.
    """

    params: Any
    opt_state: Any
    step: jax.Array
    key: jax.Array
    model_state: Any = None


def init_state(
    init_params: Callable[[jax.Array], Any], optimizer: optax.GradientTransformation, *, model_state: bool = False
) -> Callable[[jax.Array], TrainState]:
    """Make an init function for `outlay.program` that maps a key to a `TrainState`.

    Args:
        init_params: a pure function from a key to the parameters.
        optimizer: the optimizer.
        model_state: whether `init_params` returns a pair of the parameters and the model state.

    Raises:
        ProgramError: on initialization, if the optimizer's masks or labels are for other parameters, or match none.

    Example:
        >>> init = outlay.init_state(lambda key: {"w": jax.random.normal(key, (4, 2))}, optax.adam(1e-3))
        >>> state = init(jax.random.key(0))
        >>> state.opt_state[0].mu["w"].shape, int(state.step)
        ((4, 2), 0)
    """
    written = InitAsWritten(init_params, optimizer, model_state, TrainState)

    def init(key: jax.Array) -> TrainState:
        if (judge := current_judge()) is not None:
            return judge.init(written, key)
        key_params, key_samples = jax.random.split(key)
        made = init_params(key_params)
        if model_state and not (isinstance(made, tuple) and len(made) == 2):
            raise ProgramError(
                f"init_params must return a pair (params, model_state), but returned a {type(made).__name__}\n"
                "  fix: return params, model_state; or leave out model_state=True"
            )
        params, model_arrays = arrays_only(made if model_state else (made, None))
        return TrainState(
            params, optimizer_state(optimizer, params), jnp.zeros((), jnp.int32), key_samples, model_arrays
        )

    return init
