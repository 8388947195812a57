"""Make a training step from a loss and an optax optimizer, with the same numbers on any mesh."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from outlay.core.array_leaves import arrays_only, merge_objects, split_objects
from outlay.core.as_written import InitAsWritten, LossAsWritten, current_judge, current_observer
from outlay.core.constrain import History, KeepsHistory, current_history, gradient_of_sums
from outlay.core.context_values import within
from outlay.core.error_types import ProgramError
from outlay.core.flat_nodes import flat_nodes, users_nodes
from outlay.core.one_line import OneLine
from outlay.core.paths import flatten_paths
from outlay.core.public_names import called_as
from outlay.train.check_step import (
    check_metric_names,
    check_model_state,
    check_names_differ,
    check_per_example,
    check_trainable,
    num_samples,
)
from outlay.train.gradients import per_example, sum_over_microbatches, summed
from outlay.train.objective import Loss, Objective, Reduction, sample_weights, without_uncounted
from outlay.train.optimizer_calls import (
    as_optimized,
    check_overwritten,
    optimizer_state,
    overwrite,
    overwritten_paths,
    update,
    without_overwritten,
)


@called_as(
    "outlay.train_step(loss, optax.adam(1e-3))",
    lr="optax.adam(0.1): the rate is the optimizer's",
    learning_rate="optax.adam(0.1): the rate is the optimizer's",
    loss_fn="loss, the first argument",
    has_aux="a loss returns losses, or losses and metrics",
)
def train_step(
    loss: Loss,
    optimizer: optax.GradientTransformation,
    *,
    accumulate: int = 1,
    model_state: bool = False,
    groups: int | None = None,
    reduction: Reduction | None = None,
    metrics: Collection[str] = (),
    per_example_gradients: bool = False,
) -> Callable[[TrainState, Any], tuple[TrainState, dict[str, jax.Array]]]:
    """Make a training step: gradients of the mean loss, then the optimizer's update.

    Means are over the global batch, weighted by the batch's `weight` entry (B,) if present: a sample of weight
    0, such as padding, does not count, whatever it holds: the loss is given a sample that counts in its place. Each
    sample has its own PRNG key, derived from the state's key, the step and the sample's position in the global batch,
    so dropout masks depend neither on the mesh nor on `accumulate`.
    Gradients pass through `outlay.constrain(grads, "grads", optional=True)`, so a layout can place them. Parameters
    that are overwritten with their gradient, as Flax's statistics of FP8 are, get what the whole batch gives, and the
    optimizer sees zeros in their place.

    Args:
        loss: `loss(params, batch, keys) -> (losses, metrics)`. The batch is any tree of arrays with leading dim B;
            `keys` are B PRNG keys, or None in evaluation. `losses` has shape (B,), one loss per sample, and
            `metrics` has further arrays of shape (B,), or (B, K) for rows of numbers such as one-hot classes, or
            Python numbers.
        optimizer: any optax optimizer. An optimizer that needs more than gradients, such as `optax.lbfgs`, gets `value`
            (the mean loss), `grad`, and `value_fn` and `grad_fn`, the mean loss and the gradients of other parameters
            over the same batch. `optax.lookahead` takes the gradients of `params.fast`.
        accumulate: compute the gradients in this many microbatches, one after the other, for a fraction of the memory.
            The result is the same up to rounding: sums are accumulated in float32, or in float64 if
            losses, weights or gradients are, and divided once. A microbatch takes every n-th sample, so that it stays
            spread over the devices if the microbatch size B/n is a multiple of the axis that splits the batch. A loss
            that mixes samples sees one microbatch. Over devices gradients are summed once, after the last one, where
            the axes that split the batch split no parameter; `program.why_summed_each_time` says why not elsewhere.
        model_state: the loss has the form `loss(params, model_state, batch, keys) -> (losses, metrics, model_state)`.
            The new state goes into `TrainState.model_state`, from microbatch to microbatch and from step to step.
            Batch statistics, such as those of BatchNorm, are over the whole batch in every mode.
        groups: call the loss on this many groups of neighbouring samples instead, each as a separate batch: statistics
            are per group, and the new states are averaged. The numbers depend on `groups` but not on the mesh; in mode
            manual each device takes whole groups, and BatchNorm needs no collective.
        reduction: the loss and its metrics return one number for the batch, the `mean` or the `sum`; this determines
            how microbatches are combined: with `sum` the metrics are summed too, except for Python numbers. The loss
            must handle the batch's `weight` itself. A mean of means is not the mean, so with `accumulate` a `mean` is
            returned as `(sum, count)`: what is summed, such as the losses of all tokens, and by what the sum is
            divided, which counts for the metrics too.
        metrics: also return these metrics of the step: `grad_norm`, `param_norm` (of the new parameters),
            `update_norm`, and the `learning_rate` of an optimizer made with `optax.inject_hyperparams`.
        per_example_gradients: give the optimizer one gradient per sample, with a leading dim B, as one that aggregates
            them takes (`optax.contrib.differentially_private_aggregate`). Each is of the sample's own loss, times its
            weight.

    Returns:
        `step(state, batch) -> (state, metrics)`: the mean `loss`, a scalar, and the mean of each metric; with the
        reduction `sum` their sums.

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
    if not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
        given = f"{optimizer!r:.60}, of type {type(optimizer).__name__}"
        fix = "optax.adam(1e-3), for example"
        if hasattr(loss, "update") and callable(optimizer):
            fix = "outlay.train_step(loss, optimizer): they are swapped"
        raise ProgramError(f"the optimizer is one of optax, and this is {given}\n  fix: {fix}")

    written = LossAsWritten(
        loss, optimizer, accumulate, model_state, groups, reduction, tuple(metrics), per_example_gradients
    )
    if per_example_gradients:
        check_per_example(accumulate=accumulate, model_state=model_state, groups=groups, reduction=reduction)
    plain_objective = Objective(loss, model_state, reduction, groups, accumulate)
    optimizer = optax.with_extra_args_support(optimizer)  # most take no `value`, `grad` and `value_fn`
    # With the reduction "sum" that gives the mean over the equal microbatches of their sums: multiply by their number.
    of_sums = accumulate if reduction == "sum" else 1

    def step(state: TrainState, batch: Any) -> tuple[TrainState, dict[str, jax.Array]]:
        if (judge := current_judge.get()) is not None:
            return judge.step(written, state, batch)
        if state.scaling is None:
            return advance(state, batch)
        history = History(state.scaling)
        with within(current_history, history):
            new, means = advance(state, batch)
        return dataclasses.replace(new, scaling=history.values), means

    def advance(state: TrainState, batch: Any) -> tuple[TrainState, dict[str, jax.Array]]:
        state = arrays_only(state)
        objects, (params_alone, model_arrays) = split_objects((state.params, state.model_state))
        state = dataclasses.replace(state, params=params_alone, model_state=model_arrays)
        objective = dataclasses.replace(plain_objective, objects=objects)
        check_trainable(state.params)
        check_model_state(state.model_state, taken=model_state)
        num = num_samples(batch)
        weights = sample_weights(batch, num)
        # A loss that gives one number for the batch handles its weights itself.
        counting = without_uncounted(batch, weights) if reduction is None else batch
        samples = {"batch": flat_nodes(counting), "number": jnp.arange(num), "weight": weights}
        # Fold in the step and the position in the global batch, never a device index: the random numbers, such as
        # dropout masks, must be the same on every mesh.
        key = jax.random.fold_in(state.key, state.step)
        statistics = overwritten_paths(state.params)
        at_once = dataclasses.replace(objective, as_mean=bool(statistics))

        def sums(params: Any, samples: Any, model_state: Any) -> tuple[dict[str, jax.Array], Any]:
            keys = jax.vmap(jax.random.fold_in, (None, 0))(key, samples["number"])
            return at_once.sums(params, model_state, samples["batch"], keys, samples["weight"])

        share_first = None
        if per_example_gradients:
            gradient = per_example()
        else:
            if statistics:
                check_overwritten(statistics, state.params, accumulate=accumulate, groups=groups, reduction=reduction)
                # In its backward pass a layer must see gradients of the mean, as without any summing by parts.
                share_first = of_sums / (jnp.float32(num) if reduction == "sum" else jnp.sum(weights))
            gradient = summed(accumulate, state.model_state, statistics, share_first)

        def gradients(params: Any) -> tuple[Any, dict[str, jax.Array], Any]:
            grads, total, new_model_state = gradient_of_sums(gradient, sums, params, samples)
            # Divide once, by the weight of the global batch: a mean of means is wrong if weights differ (decision 7).
            share = of_sums / total["weight"] if share_first is None and not per_example_gradients else None
            with jax.named_scope("optimizer"):  # reports recognize the phase by this name
                grads = jax.tree.map(
                    lambda g, p: _downhill(g if share is None else g * share).astype(p.dtype), grads, params
                )
            return grads, total, new_model_state

        grads, total, new_model_state = gradients(state.params)
        sums_or_means = {name: value for name, value in total.items() if name != "weight"}
        if reduction == "sum":  # of the metrics, too
            means = {name: value * (of_sums / total["weight"]) for name, value in sums_or_means.items()}
        else:
            means = {name: value / total["weight"] for name, value in sums_or_means.items()}
        if (observe := current_observer.get()) is not None:
            observe(grads)
        new_statistics = grads
        grads = without_overwritten(new_statistics, statistics)

        def loss_of(params: Any) -> jax.Array:
            over = functools.partial(sums, overwrite(arrays_only(params), state.params, statistics))
            totals, _ = sum_over_microbatches(over, samples, accumulate, state.model_state)
            return totals["loss"] * (of_sums / totals["weight"])

        def gradients_of(params: Any, *number: Any) -> Any:  # optax.contrib.sam numbers its steps
            grads, *_ = gradients(overwrite(arrays_only(params), state.params, statistics))
            return users_nodes(as_optimized(without_overwritten(grads, statistics)))

        with jax.named_scope("optimizer"):
            # The optimizer sees the user's own nodes, as its masks and labels do.
            optimized, old_state, old_params = users_nodes(
                (as_optimized(grads), state.opt_state, without_overwritten(state.params, statistics))
            )
            updates, opt_state = update(
                optimizer,
                optimized,
                old_state,
                old_params,
                {"value": means["loss"], "grad": optimized, "value_fn": loss_of, "grad_fn": gradients_of},
                per_example=per_example_gradients,
            )
            updates, opt_state = arrays_only((updates, opt_state))
            params = overwrite(optax.apply_updates(state.params, updates), new_statistics, statistics)
            new = dataclasses.replace(
                state, params=params, opt_state=opt_state, step=state.step + 1, model_state=new_model_state
            )
            check_names_differ(means, metrics)
            taken = jax.tree.map(lambda grad: jnp.mean(grad, axis=0), grads) if per_example_gradients else grads
            means |= {name: _OF_THE_STEP[name](taken, updates, new) for name in metrics}
        new = users_nodes(new)
        params, new_model_state = merge_objects(objects, (new.params, new.model_state))
        return dataclasses.replace(new, params=params, model_state=new_model_state), means

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
    "param_norm": lambda grads, updates, state: optax.tree.norm(without_overwritten(state.params)),
    "update_norm": lambda grads, updates, state: optax.tree.norm(updates),
    "learning_rate": lambda grads, updates, state: _learning_rate(state),
}
"""The metrics of a step, by name."""


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["params", "opt_state", "step", "key", "model_state", "scaling"],
    meta_fields=[],
)
@dataclass(frozen=True)
class TrainState(OneLine, KeepsHistory):
    """The state of a `train_step`. Rules reach its leaves as `params.**`, `opt_state.**`, `step` and `key`.

    Attributes:
        params: the parameters, any tree of float arrays.
        opt_state: the state of the optax optimizer.
        step: the number of steps taken, a scalar int32.
        key: the PRNG key from which the keys of all samples and steps are derived.
        model_state: the state of the model itself, such as running averages; None if it has none.
        scaling: what products in FP8 with delayed scaling were scaled by, which a program adds whose layout asks for
            that (`outlay.layout.fp8`); None elsewhere.
    """

    params: Any
    opt_state: Any
    step: jax.Array
    key: jax.Array
    model_state: Any = None
    scaling: Any = None


@called_as("outlay.init_state(init_params, optax.adam(1e-3))", params="init_params=lambda key: params")
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
    if not callable(init_params) or not hasattr(optimizer, "update"):
        is_swapped = hasattr(init_params, "update") and callable(optimizer)
        raise ProgramError(
            f"init_params is a function of a key and the optimizer one of optax, and these are a "
            f"{type(init_params).__name__} and a {type(optimizer).__name__}\n  fix: "
            + (
                "outlay.init_state(init_params, optimizer): they are swapped"
                if is_swapped
                else "init_params=lambda key: params"
            )
        )
    written = InitAsWritten(init_params, optimizer, model_state, TrainState)

    def init(key: jax.Array) -> TrainState:
        if (judge := current_judge.get()) is not None:
            return judge.init(written, key)
        key_params, key_samples = jax.random.split(key)
        made = init_params(key_params)
        if model_state and not (isinstance(made, tuple) and len(made) == 2):
            raise ProgramError(
                f"init_params must return a pair (params, model_state), but returned a {type(made).__name__}\n"
                "  fix: return params, model_state; or leave out model_state=True"
            )
        params, model_arrays = users_nodes(arrays_only(made if model_state else (made, None)))
        objects, (trained, _) = split_objects((params, model_arrays))
        # In boxes of its own, since some optimizers keep the parameters that they begin with.
        trained = jax.tree.map(lambda x: x, trained) if objects else trained
        return TrainState(
            params, optimizer_state(optimizer, trained), jnp.zeros((), jnp.int32), key_samples, model_arrays
        )

    return init
