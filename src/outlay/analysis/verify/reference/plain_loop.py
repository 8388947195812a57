"""What a loss and an optimizer mean: `jax.value_and_grad` of the mean over the batch, then the optimizer's update.

Written from what `outlay.train_step` promises and from nothing that it does: no code is shared. So a fault of the one
is not a fault of the other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import optax

from outlay.analysis.verify.reference.take_apart import Apart, take_apart
from outlay.core.as_written import InitAsWritten, LossAsWritten
from outlay.core.paths import flatten_paths, map_with_paths, split_path, under

Values = dict[str, Any]


@dataclass(eq=False, kw_only=True)
class PlainLoop:
    """Computes the steps of a loss and an optimizer from the whole batch at once.

    Attributes:
        in_microbatches: take the microbatches one after the other where a step accumulates: a loss that mixes samples
            is documented to see one microbatch, and a model state goes from one to the next.
        gradients: the gradients of each loss of the step that was traced last, as its optimizer was given them.
        losses: these losses.
    """

    in_microbatches: bool = False
    gradients: list[Any] = field(default_factory=list)
    losses: list[LossAsWritten] = field(default_factory=list)

    def init(self, written: InitAsWritten, key: Any) -> Any:
        """Return the state before the first step: the first of two keys is for the parameters, the other stays."""
        of_params, of_samples = jax.random.split(key)
        made = written.init_params(of_params)
        params, model_state = made if written.model_state else (made, None)
        arrays = take_apart(params).arrays
        opt_state = written.optimizer.init(_without(arrays, _statistics(arrays)))
        return written.state_type(params, opt_state, jnp.zeros((), jnp.int32), of_samples, model_state)

    def step(self, written: LossAsWritten, state: Any, batch: Any) -> tuple[Any, Values]:
        """Return the state after a step, and its metrics."""
        params = take_apart(state.params)
        samples = _samples(written, state, batch)
        statistics = _statistics(params.arrays)

        def mean(arrays: Any) -> tuple[Any, Any]:
            return self._means(written, params.whole(arrays), state.model_state, samples)

        def mean_of(arrays: Any) -> tuple[Any, Any]:  # an optimizer has no statistics to give back
            return mean(_with(arrays, params.arrays, statistics))

        (loss, (values, model_state)), grads = jax.value_and_grad(mean, has_aux=True)(params.arrays)
        if written.per_example_gradients:
            grads = _per_example(written, params, samples)
        grads = _downhill(grads)
        self.gradients.append(grads)
        self.losses.append(written)
        updates, opt_state = _update(
            optax.with_extra_args_support(written.optimizer).update,
            (_fast(_without(grads, statistics)), state.opt_state, _without(params.arrays, statistics)),
            {
                "value": loss,
                "grad": _fast(_without(grads, statistics)),
                "value_fn": lambda arrays: mean_of(arrays)[0],
                "grad_fn": lambda arrays, *number: _fast(
                    _without(_downhill(jax.grad(mean_of, has_aux=True)(arrays)[0]), statistics)
                ),
            },
        )
        # Statistics, as those of FP8, get their gradient as their value: of the whole batch, and of nothing else.
        arrays = _with(optax.apply_updates(params.arrays, updates), grads, statistics)
        of_optimizer = (_without(grads, statistics), updates, _without(arrays, statistics), opt_state)
        metrics = {name: _METRICS[name](*of_optimizer) for name in written.metrics}
        after = dataclasses.replace(
            state, params=params.whole(arrays), opt_state=opt_state, step=state.step + 1, model_state=model_state
        )
        return after, {**values, **metrics}

    def _means(self, written: LossAsWritten, params: Any, model_state: Any, samples: Any) -> tuple[Any, Any]:
        """Return the mean loss, and all means by name with the new model state."""
        num = written.accumulate if self.in_microbatches else 1
        totals: Values = {}
        for part in _microbatches(samples, num):
            values, model_state = _values(written, params, model_state, part)
            share = 1 if written.reduction == "sum" else part["weight"].sum() / samples["weight"].sum()
            for name, value in values.items():
                totals[name] = totals.get(name, 0) + share * value
        return totals["loss"], (totals, model_state)


class LossesOnly(PlainLoop):
    """Computes the loss of each sample and trains nothing: does it depend on the other samples?

    Args:
        num_microbatches: how many microbatches the loss sees, one after the other.
    """

    def __init__(self, num_microbatches: int) -> None:
        super().__init__()
        self.num_microbatches = num_microbatches

    def step(self, written: LossAsWritten, state: Any, batch: Any) -> tuple[Any, Values]:
        """Return the state as it was, and the losses in the order of the batch; or one, if the loss reduces them."""
        each = []
        for part in _microbatches(_samples(written, state, batch), self.num_microbatches):
            called = [_losses(written, state.params, state.model_state, group)[0] for group in _groups(written, part)]
            each.append(jnp.concatenate(called) if written.reduction is None else jax.tree.map(_sum, *called))
        if written.reduction is None:
            return state, {"loss": jnp.stack(each, axis=1).reshape(-1)}
        return state, {"loss": _divided(jax.tree.map(_sum, *each))}


def _samples(written: LossAsWritten, state: Any, batch: Any) -> Any:
    """Return the batch with a key and a weight for each sample."""
    num = jax.tree.leaves(batch)[0].shape[0]
    of_step = jax.random.fold_in(state.key, state.step)
    keys = jax.vmap(lambda number: jax.random.fold_in(of_step, number))(jnp.arange(num))
    given = [leaf for path, leaf in flatten_paths(batch)[0] if path == "weight"]
    if not given:
        return {"batch": batch, "keys": keys, "weight": jnp.ones(num)}
    weight = jnp.asarray(given[0], _at_least_float32(given[0]))
    if written.reduction is None:
        # A loss is given a sample that counts in the place of one of weight 0, whose numbers may be no numbers.
        first = jnp.argmax(weight != 0)

        def counting(x: Any) -> Any:
            return jnp.where((weight != 0).reshape(-1, *(1,) * (x.ndim - 1)), x, x[first])

        batch = map_with_paths(lambda path, x: x if path == "weight" else counting(x), batch)
    return {"batch": batch, "keys": keys, "weight": weight}


def _microbatches(samples: Any, num: int) -> Iterator[Any]:
    """Yield microbatches: each takes every n-th sample."""
    for first in range(num):
        yield jax.tree.map(lambda x, first=first: x[first::num], samples) if num > 1 else samples


def _values(written: LossAsWritten, params: Any, model_state: Any, samples: Any) -> tuple[Values, Any]:
    """Return the loss and the metrics of a batch, each as one number or one row, and the new model state."""
    each = [_called(written, params, model_state, group) for group in _groups(written, samples)]
    values = {name: _over_samples(written, [one[name] for one, _ in each], samples["weight"]) for name in each[0][0]}
    return values, jax.tree.map(_mean_of_states, *(state for _, state in each))


def _groups(written: LossAsWritten, samples: Any) -> Iterator[Any]:
    """Yield groups of neighbouring samples; the loss is called on one group at a time."""
    size = samples["weight"].shape[0] // (written.groups or 1)
    for at in range(0, samples["weight"].shape[0], size):
        yield jax.tree.map(lambda x, at=at: x[at : at + size], samples) if written.groups else samples


def _called(written: LossAsWritten, params: Any, model_state: Any, samples: Any) -> tuple[Values, Any]:
    losses, metrics, *after = _losses(written, params, model_state, samples)
    return {"loss": _divided(losses), **metrics}, after[0] if written.model_state else model_state


def _losses(written: LossAsWritten, params: Any, model_state: Any, samples: Any) -> Any:
    state = (model_state,) if written.model_state else ()
    return written.loss(params, *state, samples["batch"], samples["keys"])


def _divided(losses: Any) -> Any:
    """Return losses as they are; of a mean, that is what is summed, divided by what it is divided by."""
    return losses[0] / losses[1] if isinstance(losses, tuple) else losses


def _sum(*values: Any) -> Any:
    return sum(values)


def _over_samples(written: LossAsWritten, of_groups: Sequence[Any], weight: Any) -> Any:
    """Reduce what a loss returned for each group, per sample or as one number, to what the batch has."""
    each = [jnp.asarray(value, _at_least_float32(value)) for value in of_groups]
    if written.reduction == "sum":
        return jnp.stack(each).sum(0)
    size = weight.shape[0] // len(each)
    if not each[0].ndim:
        if len(each) == 1:
            return each[0]
        each = [jnp.full(size, value) for value in each]
    values = jnp.concatenate(each)
    weights = weight.reshape(-1, *(1,) * (values.ndim - 1))
    # A sample of weight 0 does not count, whatever its numbers are.
    return jnp.where(weights != 0, weights * values, 0).sum(0) / weight.sum()


def _per_example(written: LossAsWritten, params: Apart, samples: Any) -> Any:
    """Return the gradient of each sample's own loss, times its weight."""

    def loss(arrays: Any, sample: Any) -> Any:
        alone = jax.tree.map(lambda x: x[None], sample)
        return (_called(written, params.whole(arrays), None, alone)[0]["loss"] * alone["weight"])[0]

    return jax.vmap(jax.grad(loss), (None, 0))(params.arrays, samples)


def _downhill(grads: Any) -> Any:
    """Conjugate complex gradients: JAX returns the conjugate of the direction in which the loss grows."""
    return jax.tree.map(lambda g: jnp.conj(g) if jnp.iscomplexobj(g) else g, grads)


def _fast(grads: Any) -> Any:
    return grads.fast if isinstance(grads, optax.LookaheadParams) else grads


def _update(update: Any, takes: tuple[Any, ...], extras: Values) -> tuple[Any, Any]:
    """Call an optimizer's update with those extra arguments that it does not refuse."""
    while True:
        try:
            return update(*takes, **extras)
        except TypeError as error:
            refused = [name for name in extras if f"'{name}'" in str(error)]
            if not refused:
                raise
            extras = {name: value for name, value in extras.items() if name not in refused}


def _statistics(params: Any) -> frozenset[str]:
    """Return the paths of what a layer gives as a gradient and means as a value, as Flax and Haliax mark it."""
    nodes = flatten_paths(params, is_leaf=_is_statistics)[0]
    below = {under(root, path) for root, node in nodes if _is_statistics(node) for path, _ in flatten_paths(node)[0]}
    return frozenset(below | {path for path, _ in nodes if "_overwrite_with_gradient" in split_path(path)})


def _is_statistics(node: Any) -> bool:
    return any(kind.__name__ == "OverwriteWithGradient" for kind in type(node).__mro__)


def _without(tree: Any, paths: frozenset[str]) -> Any:
    """Return a tree with zeros at some paths: what an optimizer sees."""
    return map_with_paths(lambda path, x: jnp.zeros_like(x) if path in paths else x, tree) if paths else tree


def _with(tree: Any, other: Any, paths: frozenset[str]) -> Any:
    """Return a tree with the leaves of another at some paths."""
    if not paths:
        return tree
    values = dict(flatten_paths(other)[0])
    return map_with_paths(lambda path, x: values[path].astype(x.dtype) if path in paths else x, tree)


def _mean_of_states(first: Any, *others: Any) -> Any:
    leaves = (first, *others)
    is_float = jnp.issubdtype(jnp.result_type(leaves[0]), jnp.inexact)
    return jnp.stack(leaves).mean(0) if is_float and len(leaves) > 1 else leaves[0]


def _at_least_float32(value: Any) -> Any:
    return jnp.promote_types(jnp.result_type(value), jnp.float32)


def _norm(tree: Any) -> Any:
    return jnp.sqrt(sum(jnp.sum(jnp.square(jnp.abs(leaf))) for leaf in jax.tree.leaves(tree)))


def _learning_rate(opt_state: Any) -> Any:
    return next(leaf for path, leaf in flatten_paths(opt_state)[0] if split_path(path)[-1] == "learning_rate")


_METRICS = {
    "grad_norm": lambda grads, updates, params, opt_state: _norm(grads),
    "update_norm": lambda grads, updates, params, opt_state: _norm(updates),
    "param_norm": lambda grads, updates, params, opt_state: _norm(params),
    "learning_rate": lambda grads, updates, params, opt_state: _learning_rate(opt_state),
}
