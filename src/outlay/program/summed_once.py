"""In mode auto, sum the gradients of microbatches over devices once a step: each device adds up its own until the end.

XLA sums gradients over the devices after every microbatch, since the loop carries sums over the whole batch, and in
each tick of a pipeline. So the loop runs in `jax.shard_map`, over those axes of the batch that split no parameter,
or only such whose gradients a rule keeps whole: those are gathered before the loop, and their gradients are
reduce-scattered behind it. XLA places everything else, over the other axes too. The loss still means what it means on
the whole microbatch (`global_batch.py`). Where that cannot be, the step stays as it was, and says why.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from outlay.core.constrain import Gradient, Sums, constrain, current_runner, use_spread, with_runner
from outlay.core.context_values import within
from outlay.core.jax_source import source_line
from outlay.core.paths import flatten_paths, map_with_paths, under
from outlay.core.quantities import counted
from outlay.layout.placement import dims_spec
from outlay.layout.plan import Plan
from outlay.program.global_batch import GlobalBatch
from outlay.program.gradient_splits import GradientSplit, left_to_sum, parameter_dims, scattered, whole_gradients
from outlay.program.modes import Step
from outlay.program.passes import Planned
from outlay.program.shard_collectives import sum_in_buckets

NAME = "summed_once"
"""The name of this pass; its note says why gradients are summed over devices after each microbatch, where they are."""


def wrap(step: Step, planned: Planned) -> Step:
    """Wrap a step so that the gradients of its sums over a batch are summed over devices once."""
    plan, mesh, notes = planned.plan, planned.mesh, planned.notes

    def run(gradient: Gradient, sums: Sums, params: Any, samples: Any) -> tuple[Any, Any, Any]:
        if gradient.num_microbatches == 1 and not planned.has_pipelines:
            return gradient(sums, params, samples)
        try:
            return _Region(plan, mesh, params, samples, gradient, planned.not_split).run(sums)
        except _SummedEachTime as reason:
            notes[NAME] = str(reason)
        except Exception as error:
            # Whatever a model does that has no meaning on a device's own samples: a constraint to one of their axes, a
            # region of its own over one. What is wrong with the step itself is raised below.
            line = str(error).strip().partition("\n")[0]
            notes[NAME] = f"the loss cannot run on a device's own samples: {line:.160}"
        return gradient(sums, params, samples)

    return with_runner(step, run)


class _SummedEachTime(Exception):
    """Why gradients have to be summed over devices after each microbatch."""


class _Region:
    """The loop over microbatches, run on each device's own samples.

    Args:
        plan: where every leaf lives.
        mesh: the mesh of the plan.
        params: the parameters.
        samples: a tree of arrays with one entry per sample.
        gradient: how gradients are computed.
        not_split: the names of operations that XLA does not split.
    """

    def __init__(
        self, plan: Plan, mesh: Mesh, params: Any, samples: Any, gradient: Gradient, not_split: frozenset[str]
    ) -> None:
        self._mesh, self._params, self._samples, self._gradient = mesh, params, samples, gradient
        self._not_split = not_split
        dims_of = {leaf.path: leaf.dims for leaf in plan}
        paths = [path for path, _ in flatten_paths(params)[0]]
        if any(gradient.combined(path) != "sum" for path in paths):
            raise _SummedEachTime("some parameters are overwritten by what their gradient holds")
        self._are_whole = whole_gradients(plan, paths)
        split = parameter_dims(params, plan)
        of_params = {axis for path in paths if path not in self._are_whole for axes in split[path] for axis in axes}
        self._batch_axes = _batch_axes(plan, mesh)
        self._axes = _own_axes(plan, self._batch_axes, of_params)
        self._num_parts = math.prod(mesh.shape[axis] for axis in self._axes)
        self._check_samples()
        # An axis of size 1 splits nothing, and with it the whole mesh is one region.
        self._manual = {axis for axis, size in mesh.shape.items() if axis in self._axes or size == 1}
        self._is_all = len(self._manual) == len(mesh.shape)

        def split_of(path: str, _: Any) -> GradientSplit:
            dims = split[path] if path in self._are_whole else dims_of.get(under("grads", path), ())
            own = tuple(tuple(axis for axis in axes if axis in self._axes) for axes in dims if self._is_all)
            return GradientSplit(own, "sum")

        self._splits = map_with_paths(split_of, params)
        self._dims = [() if path in self._are_whole else split[path] for path in paths]

    def _check_samples(self) -> None:
        num = len(jax.tree.leaves(self._samples)[0])
        num_microbatches = self._gradient.num_microbatches
        if num % (self._num_parts * num_microbatches):
            raise _SummedEachTime(
                f"a device has {num}/{self._num_parts} samples, which do not divide into "
                f"{counted(num_microbatches, 'microbatch', 'microbatches')}"
            )

    def run(self, sums: Sums) -> tuple[Any, Any, Any]:
        """Return the gradients, the sums, and the last carry."""
        spread = _OwnSamples(self._mesh, self._axes, is_partial=not self._is_all)

        def local(params: Any, samples: Any) -> tuple[Any, Any, Any]:
            with within(current_runner, None), use_spread(spread):
                grads, totals, carried = self._gradient(sums, params, self._over_others(samples))
            grads, totals = self._summed(grads, totals)
            return grads, totals, carried

        placed = jax.shard_map(
            self._with_own_operations(local),
            mesh=self._mesh,
            in_specs=(P(), P(self._axes)),
            out_specs=(jax.tree.map(lambda split: split.spec, self._splits), P(), P()),
            axis_names=self._manual,
            check_vma=False,  # a model that starts a loop from a constant does not pass the check
        )
        grads, totals, carried = placed(self._params, self._samples)
        # Gradients that are whole until here are now split as their parameters are.
        return grads if self._are_whole else constrain(grads, "grads", optional=True), totals, carried

    def _with_own_operations(self, local: Callable[..., Any]) -> Callable[..., Any]:
        """Run operations on shards that XLA does not split, where the region leaves axes to XLA.

        cuDNN's attention is refused there: JAX does not tell it how its operands are split.
        """
        if self._is_all or not self._not_split:
            return local
        from outlay.program.per_shard_operations import per_shard_in_region
        from outlay.program.propagated_splits import split_of

        others = tuple(axis for axis in self._batch_axes if axis not in self._axes)
        of_params = [split_of(dims_spec(dims), 1) for dims in self._dims]
        of_samples = [split_of(P(others), 0) for _ in jax.tree.leaves(self._samples)]
        return per_shard_in_region(local, self._not_split, self._mesh, [*of_params, *of_samples])

    def _over_others(self, samples: Any) -> Any:
        """Have XLA keep a device's samples split over the axes of the batch that are not the region's."""
        others = tuple(axis for axis in self._batch_axes if axis not in self._axes)
        if not others:
            return samples
        split = NamedSharding(jax.sharding.get_abstract_mesh(), P(others))
        return jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, split), samples)

    def _sum_of(self, x: jax.Array) -> jax.Array:
        """Sum over devices, as `_OwnSamples.total` does: gradients of one part have the dtype of their parameters."""
        wide = x.astype(jnp.float32) if _is_narrow(x) else x
        return jax.lax.psum(wide, self._axes).astype(x.dtype)

    def _summed(self, grads: Any, totals: Any) -> tuple[Any, Any]:
        if not self._is_all:  # to lay leaves end to end would gather what other axes split
            return jax.tree.map(self._sum_of, (grads, totals))
        whole = jax.tree.map(lambda split: GradientSplit(((),) * len(split.dims), "sum"), self._splits)
        grads = jax.tree.map(
            lambda grad, have, want: scattered(grad, have, want, self._mesh), grads, whole, self._splits
        )
        left = left_to_sum(whole, self._splits, self._axes)
        return sum_in_buckets((grads, totals), (left, jax.tree.map(lambda _: self._axes, totals)), self._mesh)


def _batch_axes(plan: Plan, mesh: Mesh) -> tuple[str, ...]:
    """Return the axes that split the samples of all leaves of the batch."""
    first = {leaf.dims[0] if leaf.dims else () for leaf in plan.of_kind("batch")}
    if len(first) != 1:
        raise _SummedEachTime("leaves of the batch are split in different ways")
    return tuple(axis for axis in first.pop() if mesh.shape[axis] > 1)


def _own_axes(plan: Plan, batch_axes: tuple[str, ...], of_params: set[str]) -> tuple[str, ...]:
    """Return the axes over which each device may add up gradients of its own: they split the batch and no parameter."""
    deeper = {axis for leaf in plan.of_kind("batch") for axes in leaf.dims[1:] for axis in axes}
    if own := tuple(axis for axis in batch_axes if axis not in of_params | deeper):
        return own
    over = "+".join(batch_axes)
    raise _SummedEachTime(
        f"parameters are split over {over}, as the batch is, and a device does not hold whole gradients of them; with "
        'the rule ("grads.**", outlay.replicate()) it does'
        if batch_axes
        else "no axis splits the batch"
    )


def _is_narrow(x: jax.Array) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize < 4


class _OwnSamples(GlobalBatch):
    """The samples of a microbatch, where a loss that cannot be taken apart is refused and not gathered.

    Args:
        mesh: the mesh.
        axes: the axes that split the batch.
        is_partial: whether XLA places values over further axes.
    """

    def __init__(self, mesh: Mesh, axes: tuple[str, ...], *, is_partial: bool) -> None:
        super().__init__(mesh, axes, lambda x: x, always=True)
        self._is_partial = is_partial

    def total(self, x: jax.Array) -> jax.Array:
        """Sum over devices."""
        # XLA for CPU, as of jaxlib 0.10, ends the process on a sum of bfloat16 in a region over some of the axes.
        is_narrow = self._is_partial and _is_narrow(x)
        return super().total(x.astype(jnp.float32)).astype(x.dtype) if is_narrow else super().total(x)

    def whole(self, x: jax.Array, dim: int) -> jax.Array:
        """Gather samples, because the loss says so."""
        if self._is_partial:
            raise _SummedEachTime("the loss asks for the whole batch")
        return super().whole(x, dim)

    def _run_globally(self, global_eqn: Any, local_eqn: Any, values: Any) -> list[Any]:
        at = source_line(local_eqn)
        raise _SummedEachTime(f"{local_eqn.primitive.name}{f' at {at}' if at else ''} takes samples together")
