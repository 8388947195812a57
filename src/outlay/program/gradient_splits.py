"""How gradients are split and combined, by the path of their parameter: what a region's sums and scatters go by."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from outlay.core.constrain import Combined
from outlay.core.error_types import ProgramError
from outlay.core.paths import flatten_paths, join_parts, split_path, under
from outlay.core.quantities import counted
from outlay.layout.placement import Dims, dims_spec
from outlay.layout.plan import Plan
from outlay.program.shard_collectives import scatter

BESIDE = "outlay_beside_parameters"
"""The path of an array that is differentiated with the parameters and is none of them: whole on each device."""


class GradientSplit:
    """The dims of a leaf, and how its gradients are combined, as one leaf of a tree."""

    def __init__(self, dims: Dims, combined: Combined) -> None:
        self.dims, self.combined = dims, combined
        self.axes = {axis for dim_axes in dims for axis in dim_axes}
        self.spec = dims_spec(dims)

    def result_spec(self, batch_axes: tuple[str, ...]) -> P:
        """Return the spec of the gradient."""
        return P(batch_axes) if self.combined == "sample" else self.spec


def scattered(grad: jax.Array, have: GradientSplit, want: GradientSplit, mesh: Mesh) -> jax.Array:
    """Reduce-scatter a gradient along the dims on which gradients are split and parameters are not."""
    for dim, axes in enumerate(want.dims):
        if axes and not have.dims[dim]:
            grad = scatter(grad, mesh, axes, dim)
    return grad


def left_to_sum(dims: Any, grad_dims: Any, over: tuple[str, ...]) -> Any:
    """Return, for each gradient, which of some axes it still has to be summed over after the reduce-scatter."""

    def one(param: GradientSplit, grad: GradientSplit) -> tuple[str, ...]:
        return tuple(x for x in over if param.combined == "sum" and x not in param.axes | grad.axes)

    return jax.tree.map(one, dims, grad_dims)


def whole_gradients(plan: Plan, paths: Iterable[str]) -> frozenset[str]:
    """Return the parameters, by path, whose gradients a rule keeps whole on each device: summed once, at the end."""
    placed = {leaf.path: leaf for leaf in plan.of_kind("intermediate") if leaf.is_placed}
    grads = {path: placed.get(under("grads", path)) for path in paths}
    return frozenset(path for path, leaf in grads.items() if leaf is not None and not any(leaf.dims))


def parameter_dims(params: Any, plan: Plan) -> dict[str, Dims]:
    """Return how the differentiated parameters are split, by their paths; see `root_of`."""
    root, dims_of = root_of(params, plan), {leaf.path: leaf.dims for leaf in plan}
    named = flatten_paths(params)[0]
    return {path: ((),) * leaf.ndim if path == BESIDE else dims_of[under(root, path)] for path, leaf in named}


def root_of(params: Any, plan: Plan) -> str:
    """Find the differentiated parameters in the state: at `params`, or at `gen.params` and the like.

    Raises:
        ProgramError: they are not in the state, or in several places that are split in different ways.
    """
    shapes = {path: tuple(leaf.shape) for path, leaf in flatten_paths(params)[0] if path != BESIDE}
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
