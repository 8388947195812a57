"""The objective of a training step: the user's loss, per sample or per batch, as sums over samples."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.sharding import AxisType

from outlay.core.array_leaves import arrays_only, as_model, merge_objects, split_objects
from outlay.core.constrain import current_spread, use_gather
from outlay.core.error_types import ProgramError
from outlay.core.flat_nodes import users_nodes
from outlay.core.paths import flatten_paths, map_with_paths
from outlay.core.quantities import counted
from outlay.core.shared_objects import Objects
from outlay.train.check_step import called

Loss = Callable[..., Any]
"""`loss(params, batch, keys) -> (losses, metrics)`, or with a model state; see `train_step`."""

Reduction = Literal["mean", "sum"]

WEIGHT = "weight"
"""The entry of a batch, and the name among sums, of what each sample counts."""


@dataclass(frozen=True)
class Objective:
    """A loss function and its form.

    Attributes:
        loss: the user's loss function.
        has_state: whether it takes and returns a model state.
        reduction: how the loss reduces a batch to one number; None if it returns one number per sample.
        groups: the number of groups into which the batch is split before calling the loss; None for no split.
        num_microbatches: the number of parts of a batch that it is called on, one after the other.
        as_mean: whether a mean that is given as `(sum, count)` is divided before anything is differentiated.
        objects: the NNX objects of parameters and model state together, for the loss; None if there are none.
    """

    loss: Loss
    has_state: bool = False
    reduction: Reduction | None = None
    groups: int | None = None
    num_microbatches: int = 1
    as_mean: bool = False
    objects: Objects | None = None

    def __post_init__(self) -> None:
        if self.reduction not in (None, "mean", "sum"):
            raise ProgramError(
                f"reduction={self.reduction!r}: a loss returns the 'mean' or the 'sum' over its batch, or one loss per "
                "sample and is given no reduction"
            )
        if self.groups is not None and self.groups < 1:
            raise ProgramError(f"groups={self.groups}: a batch is taken in 1 group or more")

    def sums(
        self, params: Any, model_state: Any, batch: Any, keys: jax.Array | None, weights: jax.Array
    ) -> tuple[dict[str, jax.Array], Any]:
        """Sum `loss`, every metric, and the sample `weight` over samples, in float32 or wider.

        A number for the whole batch counts once for each of its samples; a mean that is given as `(sum, count)` as
        often as its count says, and so do the metrics beside it.

        Args:
            params: the parameters.
            model_state: the state of the model.
            batch: any tree of arrays with leading dim B.
            keys: B PRNG keys, or None in evaluation.
            weights: the weight of each sample, (B,).

        Returns:
            The sums, and the new model state.
        """
        whole, samples, spread = (params, model_state), (batch, keys, weights), current_spread()
        if self.groups is not None and keys is not None:
            values, new_state = self._by_groups(whole, samples)
        # In mode manual a device sees only its own samples, but a loss that mixes samples must see the whole batch. A
        # loss per sample is not traced twice, since few of them mix samples and tracing time would double (decision
        # 38).
        elif spread is not None and spread.is_needed(self.has_state or self.reduction is not None):
            values, new_state = spread.global_result(self._called, whole, samples)
        else:
            values, new_state = self._called(whole, samples)
        if WEIGHT in values:  # sum and count, of which each sample is given an equal part
            total, count = (values.pop(name) for name in ("loss", WEIGHT))
            total, count = (jnp.asarray(x).astype(at_least(x.dtype)) / len(weights) for x in (total, count))
            total, count = (jnp.broadcast_to(x, weights.shape) for x in (total, count))
            return {"loss": jnp.sum(total), **_weighted(values, count)}, new_state
        if self.reduction == "sum":  # of which padding is part, unless the loss itself leaves it out
            weights = jnp.ones_like(weights)
        return _weighted(values, weights), new_state

    def _called(self, whole: Any, samples: Any) -> tuple[dict[str, Any], Any]:
        (params, model_state), (batch, keys, weights) = as_model(whole), samples
        batch = users_nodes(batch)
        expected = weights.shape if self.reduction is None else ()
        state = (model_state,) if self.has_state else ()
        values, new_state = called(
            self._loss_of_arrays(),
            params,
            state,
            batch,
            keys,
            expected,
            counts=self.reduction == "mean",
            num_parts=self.num_microbatches if self.reduction == "sum" else 1,
        )
        if self.reduction == "mean" and self.num_microbatches > 1 and WEIGHT not in values:
            raise ProgramError(
                f'reduction="mean" with accumulate={self.num_microbatches} would be a mean of means, which is another '
                "number than the mean over the batch where its parts do not count alike, as for tokens or masks\n"
                "  fix: return (sum, count), metrics: what is summed, and by what the sum is divided; or return one "
                'loss per sample, without reduction=, and give what each sample counts as the batch\'s "weight"'
            )
        if self.as_mean and WEIGHT in values:
            values["loss"] = values["loss"] / values.pop(WEIGHT).astype(values["loss"].dtype)
        return arrays_only((values, new_state))

    def _loss_of_arrays(self) -> Loss:
        """Return the loss as a function of arrays, where parameters or model state hold NNX objects."""
        if self.objects is None:
            return self.loss

        @functools.wraps(self.loss)
        def loss(params: Any, *others: Any) -> Any:
            state, others = (others[0], others[1:]) if self.has_state else (None, others)
            params, state = merge_objects(self.objects, (params, state))
            result = self.loss(params, *((state,) if self.has_state else ()), *others)
            if not self.has_state or not isinstance(result, tuple) or len(result) != 3:
                return result
            _, (_, new_state) = split_objects((params, result[2]))  # what stands in both belongs to the parameters
            return (*result[:2], new_state)

        return loss

    def _by_groups(self, whole: Any, samples: Any) -> tuple[dict[str, Any], Any]:
        """Call the loss on each group of neighbouring samples separately, and average the model states."""
        spread, num_samples = current_spread(), samples[2].shape[0]
        groups = self.groups or 1
        num_devices = spread.num_devices if spread else 1
        num = groups // num_devices
        if groups % num_devices or num_samples % num:
            raise ProgramError(
                f"groups={groups}: a batch of {num_samples * num_devices} samples on {counted(num_devices, 'device')} "
                f"cannot be split into {groups} equal groups, each on one device\n"
                f"  fix: use a multiple of {num_devices} that divides {num_samples * num_devices}, such as "
                f"groups={num_devices}"
            )
        apart = jax.tree.map(lambda x: x.reshape(num, num_samples // num, *x.shape[1:]), samples)
        model_state = whole[1]
        axes = jax.tree.map(lambda x: 0 if _is_inexact(x) else None, model_state)
        call = jax.vmap(functools.partial(self._called, whole), out_axes=(0, axes))
        try:
            with use_gather(None):  # a group is its whole batch
                values, states = call(apart)
        except ValueError as error:
            if "out_axes" not in str(error):
                raise
            raise ProgramError(
                f"groups={groups}: leaves of the new model state that are not floats differ between groups, so they "
                f"have no mean\n  fix: make them independent of the samples, or leave out groups\n  JAX says: {error}"
            ) from error
        state = jax.tree.map(lambda x, axis: x if axis is None else x.mean(0), states, axes, is_leaf=_is_none)
        each = num_samples // num
        values = {
            name: x.reshape(num_samples, *x.shape[2:]) if x.ndim > 1 else jnp.repeat(x, each)
            for name, x in values.items()
        }
        return values, state if spread is None else spread.mean(state)


def sample_weights(batch: Any, num: int) -> jax.Array:
    """Return the weights of `num` samples: the batch's entry or field `weight`, or 1.

    Raises:
        ProgramError: there is not one number per sample.
    """
    given = [leaf for path, leaf in flatten_paths(batch)[0] if path == WEIGHT]
    if not given:
        return jnp.ones(num, jnp.float32)
    weights = jnp.asarray(given[0])
    if weights.shape != (num,) or jnp.issubdtype(weights.dtype, jnp.complexfloating):
        raise ProgramError(
            f"batch.weight is {weights.dtype}{list(weights.shape)}; it says what each of {num} samples counts"
            f"\n  fix: one real number per sample, shape ({num},), such as weight.reshape(-1); or another name"
        )
    return weights.astype(at_least(weights.dtype))


def without_uncounted(batch: Any, weights: jax.Array) -> Any:
    """Replace what samples of weight 0 hold by what the first sample that counts holds.

    To multiply their losses by 0 is not enough: where a loss is not finite (a mean over no token, the logarithm of 0),
    the backward pass has a 0 times infinity before it reaches the parameters, and one such sample makes every gradient
    NaN. Constants in their place could be where the loss is not finite, too.

    Args:
        batch: a tree of arrays with leading dim B; its `weight` stays as it is.
        weights: the weight of each sample, (B,).

    Example:
        >>> weight = jnp.array([0.0, 1.0, 1.0])
        >>> without_uncounted({"x": jnp.array([jnp.nan, 2.0, 3.0]), "weight": weight}, weight)["x"].tolist()
        [2.0, 2.0, 3.0]
    """
    if all(path != WEIGHT for path, _ in flatten_paths(batch)[0]):
        return batch
    counts = weights != 0
    # Computed from the weights, these are split as they are, on Explicit axes too.
    number = jnp.arange(len(weights)) + jnp.zeros_like(weights, jnp.int32)
    is_first = counts & (number == jnp.min(jnp.where(counts, number, jnp.full_like(number, len(weights)))))

    def one(x: Any) -> jax.Array:
        x = jnp.asarray(x)
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(one(jax.random.key_data(x)), impl=jax.random.key_impl(x))
        # A sum, of which all but one entry are 0, splits over devices in every mode, as an index would not.
        first = jnp.sum(jnp.where(_like(x, is_first, 0), x, jnp.zeros_like(x)), axis=0, dtype=x.dtype)
        return jnp.where(_like(x, counts, 0), x, _like(x, first, *range(1, x.ndim)))

    return map_with_paths(lambda path, x: x if path == WEIGHT else one(x), batch)


def _like(x: jax.Array, part: jax.Array, *dims: int) -> jax.Array:
    """Return an array that has some of the dims of `x`, repeated along the others, and split as `x` is."""
    sharding = jax.typeof(x).sharding
    is_typed = AxisType.Explicit in sharding.mesh.axis_types
    return jax.lax.broadcast_in_dim(part, x.shape, dims, out_sharding=sharding if is_typed else None)


def weighted_sum(weights: jax.Array, each: jax.Array) -> jax.Array:
    """Sum over samples, weighted; each sample has one number or a row of numbers.

    A sample of weight 0 adds nothing, whatever its number is.

    >>> float(weighted_sum(jnp.array([1.0, 0.0]), jnp.array([3.0, jnp.nan])))
    3.0
    """
    across = weights[:, None] if each.ndim > 1 else weights
    weighted = across * each
    is_out = across + jnp.zeros_like(each) == 0  # split as the product is, on Explicit axes too
    return jnp.sum(jnp.where(is_out, jnp.zeros_like(weighted), weighted), axis=0)


def _weighted(values: Mapping[str, Any], weights: jax.Array) -> dict[str, jax.Array]:
    """Sum values over samples, weighted, and the weights themselves."""
    sums = {}
    for name, value in values.items():
        dtype = at_least(weights.dtype, value.dtype)
        each = jnp.broadcast_to(value, (*weights.shape, *value.shape[1:])).astype(dtype)
        sums[name] = weighted_sum(weights.astype(dtype), each)
    return {**sums, WEIGHT: jnp.sum(weights.astype(sums["loss"].dtype if "loss" in sums else weights.dtype))}


def at_least(*dtypes: Any) -> Any:
    """Return the dtype in which to sum values of these dtypes: float32 or wider."""
    return functools.reduce(jnp.promote_types, dtypes, jnp.dtype(jnp.float32))


def _is_inexact(x: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(x), jnp.inexact)


def _is_none(x: Any) -> bool:
    return x is None
