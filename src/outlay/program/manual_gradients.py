"""Take gradients with hand-written collectives: each device computes on its own samples.

A sharded parameter is gathered where it is used, inside the differentiated function, so its gradient is
reduce-scattered in the backward pass: the transpose of `all_gather` is `psum_scatter`. The gradients of a replicated
parameter are summed once, after all microbatches, many leaves in one collective. Everything is a sum over samples, so
nothing depends on the number of devices; devices that hold the same samples (those along an axis that does not split
the batch) count once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from outlay.core.constrain import (
    Gradient,
    Runner,
    Sums,
    current_marker,
    current_runner,
    use_resolver,
    use_spread,
    with_runner,
)
from outlay.core.context_values import within
from outlay.core.error_types import ProgramError
from outlay.core.jax_tracing import varying_axes
from outlay.core.paths import flatten_paths, map_with_paths, under
from outlay.layout.placement import Dims
from outlay.layout.plan import Plan
from outlay.program.constraints import naming
from outlay.program.gather_at_use import gathered_at_use
from outlay.program.global_batch import GlobalBatch, NeedsGlobalBatch
from outlay.program.gradient_splits import GradientSplit, left_to_sum, parameter_dims, scattered, whole_gradients
from outlay.program.modes import Step
from outlay.program.passes import Planned
from outlay.program.shard_collectives import are_pairs, max_in_buckets, sum_in_buckets


def wrap(step: Step, planned: Planned) -> Step:
    """Wrap a step so that the gradients of its sums are taken with hand-written collectives."""
    return with_runner(step, gradient_runner(planned))


def gradient_runner(planned: Planned) -> Runner:
    """Return how `gradient_of_sums` runs in mode `manual` under a plan.

    Raises:
        ProgramError: the batch is split along other dims than the first, or leaves are split in different ways.
    """
    plan, mesh = planned.plan, planned.mesh
    batch_axes = _batch_axes(plan)
    dims_of = {leaf.path: leaf.dims for leaf in plan}
    named = naming(planned)
    store = _rematerialized(planned)

    def run(gradient: Gradient, sums: Sums, params: Any, samples: Any) -> tuple[Any, Any, Any]:
        own_dims = parameter_dims(params, plan)
        are_whole = whole_gradients(plan, [path for path, _ in flatten_paths(params)[0]])

        def split(path: str, dims: Dims) -> GradientSplit:
            # A split parameter's gradient is summed where its shards are gathered, so what is not summed is not split.
            combined = gradient.combined(path)
            return GradientSplit(dims if combined == "sum" else ((),) * len(dims), combined)

        def of_gradient(path: str) -> Dims:
            own = own_dims[path]
            return own if path in are_whole else dims_of.get(under("grads", path), own)

        def of_parameter(path: str) -> Dims:
            own = own_dims[path]
            return ((),) * len(own) if path in are_whole else own

        dims = map_with_paths(lambda path, _: split(path, of_parameter(path)), params)
        grad_dims = map_with_paths(lambda path, _: split(path, of_gradient(path)), params)
        are_summed = all(each.combined == "sum" for each in jax.tree.leaves(dims))

        left = left_to_sum(dims, grad_dims, mesh.axis_names)

        def attempt(*, check_vma: bool, one_batch: bool = False) -> tuple[Any, Any, Any]:
            local = _local(gradient, store(sums), named, dims, grad_dims, left, mesh, batch_axes, check_vma, one_batch)
            specs = jax.tree.map(lambda split: split.spec, dims), P(batch_axes)
            out_specs = jax.tree.map(lambda split: split.result_spec(batch_axes), grad_dims), P(), P()
            placed = jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=out_specs, check_vma=check_vma)
            return placed(params, samples)

        # Two devices that exchange and add hold the same sum, but check_vma cannot see that: a ppermute's result
        # varies over the axis, and out_specs would refuse it.
        summed_over = [mesh.axis_names, *jax.tree.structure(dims).flatten_up_to(left)]
        can_check = are_summed and not any(are_pairs(mesh, axes) for axes in summed_over)

        def retried(*, one_batch: bool) -> tuple[Any, Any, Any]:
            try:
                return attempt(check_vma=can_check, one_batch=one_batch)
            except TypeError as error:
                if "manual axis types" not in str(error):
                    raise
                # A model that starts a loop from a constant does not pass the check, though it is right: all
                # collectives are the ones here, the model holds none, and the check is about theirs.
                return attempt(check_vma=False, one_batch=one_batch)

        try:
            try:
                return retried(one_batch=False)
            except NeedsGlobalBatch:
                return retried(one_batch=True)
        except ProgramError as error:
            num = len(jax.tree.leaves(samples)[0])
            raise ProgramError(_in_numbers_of_one_device(num, batch_axes, mesh) + str(error)) from error

    return run


def _rematerialized(planned: Planned) -> Callable[[Sums], Sums]:
    """Return what makes the derivative of sums keep, recompute or offload values; what leaves them without rules."""
    if not planned.stores:
        return lambda sums: sums
    from outlay.program.rematerialization import Rematerialization

    return Rematerialization(planned.plan)


def _local(
    gradient: Gradient,
    sums: Sums,
    named: Callable[[str | P, Any], Any],
    dims: Any,
    grad_dims: Any,
    left: Any,
    mesh: Mesh,
    batch_axes: tuple[str, ...],
    check_vma: bool,
    one_batch: bool,
) -> Callable[[Any, Any], tuple[Any, Any, Any]]:
    """Return what one device computes from its shards of the parameters and its samples."""
    num_copies = math.prod(size for axis, size in mesh.shape.items() if axis not in batch_axes)

    def vary(x: jax.Array) -> jax.Array:
        """Mark a value as each device's own, where it is not already."""
        if not check_vma:
            return x
        missing = tuple(axis for axis in mesh.axis_names if axis not in varying_axes(x))
        return jax.lax.pcast(x, missing, to="varying") if missing else x

    spread = GlobalBatch(mesh, batch_axes, vary, always=one_batch)
    largest_over = jax.tree.map(lambda split: mesh.axis_names if split.combined == "max" else (), dims)

    def local(pieces: Any, samples: Any) -> tuple[Any, Any, Any]:
        # With check_vma the transpose of a replicated value is a psum. Marked as varying, replicated parameters keep
        # local gradients, which are summed below in few collectives instead of leaf by leaf.
        own, samples = jax.tree.map(vary, (pieces, samples))

        def sums_of(pieces: Any, samples: Any, carried: Any) -> Any:
            split = [split.dims for split in jax.tree.leaves(dims)]
            return gathered_at_use(sums, pieces, split, mesh, samples, carried)

        with (
            within(current_runner, None),
            use_resolver(lambda where, tree, optional: named(where, tree)),
            within(current_marker, lambda tree: jax.tree.map(vary, tree)),
            use_spread(spread),
        ):
            grads, totals, carried = gradient(sums_of, own, samples)
        grads = jax.tree.map(lambda grad, have, want: scattered(grad, have, want, mesh), grads, dims, grad_dims)
        # The totals share the gradients' collective: between processes one of their own costs milliseconds. The carry
        # is the same on all devices, which JAX cannot know; summed with all but the first device's as zero, it is
        # replicated in JAX's eyes too.
        carried, bits = _first_only(carried, mesh)
        everywhere = jax.tree.map(lambda _: mesh.axis_names, (totals, bits))
        grads, (totals, bits) = sum_in_buckets((grads, (totals, bits)), (left, everywhere), mesh)
        grads = max_in_buckets(grads, largest_over, mesh)
        if num_copies > 1:
            grads = jax.tree.map(lambda x, split: x / num_copies if split.combined == "sum" else x, grads, dims)
            totals = jax.tree.map(lambda x: x / num_copies, totals)
        return grads, totals, carried(bits)

    return local


def _first_only(tree: Any, mesh: Mesh) -> tuple[Callable[[Any], Any], Any]:
    """Return arrays whose sum over devices is the first device's, and the function that restores their types."""
    leaves, structure = jax.tree.flatten(tree)
    is_first = jax.lax.axis_index(mesh.axis_names) == 0
    like = [(x.dtype, jax.random.key_impl(x) if _is_key(x) else None) for x in leaves]

    def bits(x: jax.Array) -> jax.Array:
        x = jax.random.key_data(x) if _is_key(x) else x
        x = x.astype(jnp.int32) if x.dtype == jnp.bool_ else x
        return jnp.where(is_first, x, jnp.zeros_like(x))

    def again(sums: list[jax.Array]) -> Any:
        arrays = [
            x.astype(dtype) if impl is None else jax.random.wrap_key_data(x, impl=impl)
            for x, (dtype, impl) in zip(sums, like, strict=True)
        ]
        return structure.unflatten(arrays)

    return again, list(map(bits, leaves))


def _is_key(x: jax.Array) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _in_numbers_of_one_device(num_samples: int, batch_axes: tuple[str, ...], mesh: Mesh) -> str:
    num = math.prod(mesh.shape[axis] for axis in batch_axes)
    along = "".join(f" along {axis!r}" for axis in batch_axes)
    return (
        f"mode manual takes microbatches on each device: each of {num} devices{along} takes {num_samples}/{num} = "
        f"{num_samples // num} samples, and the numbers that follow are one device's\n"
    )


def _batch_axes(plan: Plan) -> tuple[str, ...]:
    splits = {leaf.dims[0] if leaf.dims else () for leaf in plan.of_kind("batch")}
    deeper = [leaf.path for leaf in plan.of_kind("batch") if any(leaf.dims[1:])]
    if deeper or len(splits) != 1:
        lines = "".join(f"\n  {leaf.path}: {leaf.spec} ({leaf.rule})" for leaf in plan.of_kind("batch"))
        raise ProgramError(
            f"mode manual gives each device its samples, so every leaf of the batch must be split alike along its "
            f"first dim:{lines}\n  fix: outlay.data_parallel() for the batch, or mode='auto'"
        )
    return next(iter(splits))
