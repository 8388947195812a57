"""Check arrays before they are placed: shapes fit the sharding, and a tree has the plan's leaves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp
from jax.sharding import AbstractMesh, NamedSharding, Sharding

from outlay.core.error_types import LayoutError, PlaceError, Problem
from outlay.core.paths import flatten_paths, under
from outlay.core.quantities import counted
from outlay.devices.mesh_info import check_runnable
from outlay.layout.leaf_plan import LeafPlan
from outlay.layout.placement import spec_dims, spec_text

Shape = tuple[int, ...]

_MAX_COMPARED = 20
"""Leaves that are compared with all that the other side lacks; two states without a common name have thousands."""


def check_fits(named: Iterable[tuple[str, Shape]], sharding: Sharding, *, is_run: bool = True) -> None:
    """Raise if arrays of these shapes cannot have a sharding, or if nothing can run on its devices.

    Args:
        named: path and global shape of every array; a single array has the empty path.
        sharding: where they are to live.
        is_run: whether they are to be placed, which devices that are not here refuse.

    Raises:
        PlaceError: with one problem per indivisible dim or too long spec.
        ProgramError: the devices are compile-only.
    """
    if not isinstance(sharding, NamedSharding):
        return
    if isinstance(sharding.mesh, AbstractMesh):
        raise PlaceError("arrays cannot be put on an AbstractMesh: it has no devices\n  fix: use outlay.mesh(...)")
    if is_run:
        check_runnable(sharding.mesh, "arrays cannot be put")
    problems = [problem for path, shape in named for problem in _shape_problems(path, tuple(shape), sharding)]
    if problems:
        axes = ", ".join(f"{axis}={size}" for axis, size in sharding.mesh.shape.items())
        raise PlaceError(
            f"{spec_text(sharding.spec)} on mesh {axes} does not fit: {counted(len(problems), 'problem')}", problems
        )


def _shape_problems(path: str, shape: Shape, sharding: NamedSharding) -> list[Problem]:
    """List every reason why an array of this shape cannot have the sharding."""
    sizes, spec = sharding.mesh.shape, sharding.spec
    if len(spec) > len(shape):
        what = f"{spec_text(spec)} is for {len(spec)} dims, the array {shape} has {len(shape)}"
        return [Problem("spec too long", path, what, "give the spec one entry per dim")]
    problems = []
    for dim, axes in enumerate(spec_dims(spec, len(shape))):
        pieces = math.prod(sizes[axis] for axis in axes)
        if shape[dim] % pieces:
            over = " x ".join(f"{axis}={sizes[axis]}" for axis in axes)
            up = -(-shape[dim] // pieces) * pieces
            what = f"dim {dim} of {shape} has size {shape[dim]}, which is not divisible by {over}"
            problems.append(Problem("indivisible dim", path, what, f"pad it to {up}, or split another dim"))
    return problems


def check_same_leaves(tree: Any, leaves: Iterable[LeafPlan], what: str, *, root: str = "", part: bool = False) -> None:
    """Raise unless a tree has the paths, shapes and dtypes of these leaves, or with `part` of some of them.

    Raises:
        LayoutError: with one problem per difference.
    """
    problems = leaf_differences(tree, leaves, root=root)
    problems = [problem for problem in problems if not (part and problem.kind == "missing leaf")]
    if problems:
        raise LayoutError(
            f"these arrays are not the ones {what} was made for: {counted(len(problems), 'difference')}", problems
        )


def leaf_differences(tree: Any, leaves: Iterable[LeafPlan], *, root: str = "") -> list[Problem]:
    """List every leaf that is missing, extra, or of another shape or dtype."""
    planned = {leaf.path: leaf for leaf in leaves}
    given = {under(root, path): leaf for path, leaf in flatten_paths(tree)[0]}
    missing = [path for path in planned if path not in given]
    extra = [path for path in given if path not in planned]
    lacks, has = "the plan has it, the tree does not", "the tree has it, the plan does not"
    return [
        *_one_sided("missing leaf", missing, lacks, "add it", extra),
        *_one_sided("extra leaf", extra, has, "remove it", missing),
        *(problem for path in given if path in planned for problem in _type_problems(given[path], planned[path])),
    ]


def _one_sided(kind: str, paths: Sequence[str], what: str, edit: str, others: Sequence[str]) -> Iterator[Problem]:
    """Yield a problem for each leaf that one side lacks; the first ones with the names that are near."""
    from outlay.core.suggest import or_renamed

    for number, path in enumerate(paths):
        yield Problem(kind, path, what, or_renamed(edit, path, others) if number < _MAX_COMPARED else edit)


def _type_problems(leaf: Any, planned: LeafPlan) -> list[Problem]:
    shape, dtype = tuple(jnp.shape(leaf)), str(jnp.result_type(leaf))
    # Raw keys (uint32) have one dim more than typed ones, so that shape and dtype would be two wrong hints.
    if planned.dtype.startswith("key<") and dtype != planned.dtype:
        old_style = dtype == "uint32" and len(shape) == len(planned.shape) + 1
        fix = "jax.random.wrap_key_data(x)" if old_style else "create it with jax.random.key, of that kind"
        return [Problem("other key", planned.path, f"{dtype} of shape {shape}, planned {planned.dtype}", fix)]
    problems = []
    if shape != planned.shape:
        what = f"shape {shape}, planned {planned.shape}"
        problems.append(Problem("other shape", planned.path, what, _fix_of_shape(shape, planned)))
    if dtype != planned.dtype:
        what = f"dtype {dtype}, planned {planned.dtype}"
        problems.append(Problem("other dtype", planned.path, what, f"convert it: x.astype({planned.dtype!r})"))
    return problems


def _fix_of_shape(shape: Shape, planned: LeafPlan) -> str:
    if planned.kind != "batch" or not planned.shape:
        return "make a new plan for arrays of this shape"
    num = planned.shape[0]
    if shape == planned.shape[1:]:
        return f"this is one sample: outlay.TrainData(examples, batch_size={num}) makes batches of examples"
    if shape[1:] == planned.shape[1:] and 0 < shape[0] < num:
        return (
            f"it is a last batch of {shape[0]} samples: leave it out (drop_remainder=True, drop_last=True), or fill it "
            f"up to {num} and give the batch an entry `weight` that is 0 for what was filled in; outlay.TrainData has "
            "only full batches"
        )
    return "make a new plan for arrays of this shape"
