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

from outlay.core.constrain import Combined, Gradient, Runner, Sums, marking, resolving, spreading, summing
from outlay.core.error_types import ProgramError
from outlay.core.jax_tracing import varying_axes
from outlay.core.paths import flatten_paths, join_parts, map_with_paths, split_path, under
from outlay.core.quantities import counted
from outlay.layout.placement import Dims, dims_spec
from outlay.layout.plan import Plan
from outlay.program.as_one_batch import NeedsOneBatch, SpreadBatch
from outlay.program.gather_at_use import gathered_at_use
from outlay.program.shard_collectives import are_pairs, max_in_buckets, scatter, sum_in_buckets
from outlay.program.storing import Storing


def gradient_runner(plan: Plan, mesh: Mesh) -> Runner:
    """Return how `gradient_of_sums` runs in mode `manual` under a plan.

    Raises:
        ProgramError: the batch is split along other dims than the first, or leaves are split in different ways.
    """
    batch_axes = _batch_axes(plan)
    dims_of = {leaf.path: leaf.dims for leaf in plan}
    storing = Storing(plan)

    def run(gradient: Gradient, sums: Sums, params: Any, samples: Any) -> tuple[Any, Any, Any]:
        root = _root_of(params, plan)

        def split(path: str, dims: Dims) -> _Split:
            # A split parameter's gradient is summed where its shards are gathered, so what is not summed is not split.
            combined = gradient.combined(path)
            return _Split(dims if combined == "sum" else ((),) * len(dims), combined)

        dims = map_with_paths(lambda path, _: split(path, dims_of[under(root, path)]), params)
        grad_dims = map_with_paths(
            lambda path, _: split(path, dims_of.get(under("grads", path), dims_of[under(root, path)])), params
        )
        are_summed = all(each.combined == "sum" for each in jax.tree.leaves(dims))

        left = _left_to_sum(dims, grad_dims, mesh)

        def attempt(*, check_vma: bool, one_batch: bool = False) -> tuple[Any, Any, Any]:
            local = _local(gradient, sums, storing, dims, grad_dims, left, mesh, batch_axes, check_vma, one_batch)
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
            except NeedsOneBatch:
                return retried(one_batch=True)
        except ProgramError as error:
            num = len(jax.tree.leaves(samples)[0])
            raise ProgramError(_in_numbers_of_one_device(num, batch_axes, mesh) + str(error)) from error

    return run


def _root_of(params: Any, plan: Plan) -> str:
    """Find the differentiated parameters in the state: at `params`, or at `gen.params` and the like.

    Raises:
        ProgramError: they are not in the state, or in several places that are split in different ways.
    """
    shapes = {path: tuple(leaf.shape) for path, leaf in flatten_paths(params)[0]}
    leaves = {leaf.path: leaf for leaf in plan.of_kind("state")}

    def stand_below(root: str) -> bool:
        planned = (leaves.get(under(root, path)) for path in shapes)
        return all(leaf and leaf.shape == shape for leaf, shape in zip(planned, shapes.values(), strict=True))

    if stand_below("params"):
        return "params"
    ends = split_path(next(iter(shapes)))
    starts = [split_path(path)[: len(split_path(path)) - len(ends)] for path in leaves if split_path(path)]
    roots = [root for root in dict.fromkeys(map(join_parts, starts)) if stand_below(root)]
    roots = [root for root in roots if split_path(root)[-1:] == ("params",)] or roots
    if len({tuple(leaves[under(root, path)].dims for path in shapes) for root in roots}) == 1:
        return roots[0]
    known = f"in {len(roots)} places, split in different ways: {', '.join(roots)}" if roots else "nowhere as these do"
    raise ProgramError(
        f"gradients are taken of {counted(len(shapes), 'parameter')} such as {next(iter(shapes)) or 'an array'}, and "
        f'in the state they stand {known}\n  fix: mode="auto", or a state whose `params` they are'
    )


def _local(
    gradient: Gradient,
    sums: Sums,
    storing: Storing,
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

    spread = SpreadBatch(mesh, batch_axes, vary, always=one_batch)
    largest_over = jax.tree.map(lambda split: mesh.axis_names if split.combined == "max" else (), dims)

    def local(pieces: Any, samples: Any) -> tuple[Any, Any, Any]:
        # With check_vma the transpose of a replicated value is a psum. Marked as varying, replicated parameters keep
        # local gradients, which are summed below in few collectives instead of leaf by leaf.
        own, samples = jax.tree.map(vary, (pieces, samples))

        def sums_of(pieces: Any, samples: Any, carried: Any) -> Any:
            split = [split.dims for split in jax.tree.leaves(dims)]
            return gathered_at_use(storing(sums), pieces, split, mesh, samples, carried)

        with (
            summing(None),
            resolving(lambda where, tree, optional: storing.named(where, tree)),
            marking(lambda tree: jax.tree.map(vary, tree)),
            spreading(spread),
        ):
            grads, totals, carried = gradient(sums_of, own, samples)
        grads = jax.tree.map(lambda grad, have, want: _scatter(grad, have, want, mesh), grads, dims, grad_dims)
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


class _Split:
    """The dims of a leaf, and how its gradients are combined, as one leaf of a tree."""

    def __init__(self, dims: Dims, combined: Combined) -> None:
        self.dims, self.combined = dims, combined
        self.axes = {axis for dim_axes in dims for axis in dim_axes}
        self.spec = dims_spec(dims)

    def result_spec(self, batch_axes: tuple[str, ...]) -> P:
        """Return the spec of the gradient."""
        return P(batch_axes) if self.combined == "sample" else self.spec


def _scatter(grad: jax.Array, have: _Split, want: _Split, mesh: Mesh) -> jax.Array:
    """Reduce-scatter a gradient along the dims on which gradients are split and parameters are not."""
    for dim, axes in enumerate(want.dims):
        if axes and not have.dims[dim]:
            grad = scatter(grad, mesh, axes, dim)
    return grad


def _left_to_sum(dims: Any, grad_dims: Any, mesh: Mesh) -> Any:
    """Return, for each gradient, the axes over which it still has to be summed after the reduce-scatter."""

    def one(param: _Split, grad: _Split) -> tuple[str, ...]:
        return tuple(x for x in mesh.axis_names if param.combined == "sum" and x not in param.axes | grad.axes)

    return jax.tree.map(one, dims, grad_dims)


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
