"""Can a sharding have an array of this shape: its spec's length, and dims that divide."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import jax.numpy as jnp
from jax.sharding import AbstractMesh, NamedSharding, Sharding

from outlay.arrays.shardings import under
from outlay.core.error_types import LayoutError, PlaceError, Problem
from outlay.core.paths import flatten_paths
from outlay.core.quantities import counted
from outlay.core.suggest import did_you_mean
from outlay.devices.made import refuse_to_run
from outlay.layout.placement import spec_dims, spec_text
from outlay.layout.plan import LeafPlan

Shape = tuple[int, ...]


def refuse_misfits(named: Iterable[tuple[str, Shape]], sharding: Sharding) -> None:
    """Raise where arrays cannot have a sharding, or nothing can live on its devices.

    Args:
        named: path and global shape of every array; an array alone has the empty path.
        sharding: where they shall live.

    Raises:
        PlaceError: with one problem per dim that does not divide, or spec that is too long.
        ProgramError: the devices are compile-only.
    """
    if not isinstance(sharding, NamedSharding):
        return
    if isinstance(sharding.mesh, AbstractMesh):
        raise PlaceError("arrays cannot be put on an AbstractMesh, which has no devices\n  fix: use outlay.mesh(...)")
    refuse_to_run(sharding.mesh, "arrays cannot be put")
    problems = [problem for path, shape in named for problem in misfits(path, tuple(shape), sharding)]
    if problems:
        axes = ", ".join(f"{axis}={size}" for axis, size in sharding.mesh.shape.items())
        raise PlaceError(
            f"{spec_text(sharding.spec)} on mesh {axes} does not fit: {counted(len(problems), 'problem')}", problems
        )


def misfits(path: str, shape: Shape, sharding: NamedSharding) -> list[Problem]:
    """Every reason why an array of this shape cannot have the sharding."""
    sizes, spec = sharding.mesh.shape, sharding.spec
    if len(spec) > len(shape):
        what = f"{spec_text(spec)} is for {len(spec)} dims, the array {shape} has {len(shape)}"
        return [Problem("spec too long", path, what, "give the spec one entry a dim")]
    problems = []
    for dim, axes in enumerate(spec_dims(spec, len(shape))):
        pieces = math.prod(sizes[axis] for axis in axes)
        if shape[dim] % pieces:
            over = " x ".join(f"{axis}={sizes[axis]}" for axis in axes)
            up = -(-shape[dim] // pieces) * pieces
            what = f"dim {dim} of {shape} has size {shape[dim]}, which does not divide by {over}"
            problems.append(Problem("indivisible dim", path, what, f"pad it to {up}, or split another dim"))
    return problems


def refuse_mismatch(tree: Any, leaves: Iterable[LeafPlan], what: str, *, root: str = "", part: bool = False) -> None:
    """Raise when a tree's paths, shapes or dtypes are not those of the leaves, or with `part` of some of them.

    Raises:
        LayoutError: with one problem per difference.
    """
    problems = [
        problem for problem in differences(tree, leaves, root=root) if not (part and problem.kind == "missing leaf")
    ]
    if problems:
        raise LayoutError(
            f"these arrays are not the ones {what} was made for: {counted(len(problems), 'difference')}", problems
        )


def differences(tree: Any, leaves: Iterable[LeafPlan], *, root: str = "") -> list[Problem]:
    """Every leaf that is missing, extra, or of another shape or dtype."""
    planned = {leaf.path: leaf for leaf in leaves}
    given = {under(root, path): leaf for path, leaf in flatten_paths(tree)[0]}
    missing = [path for path in planned if path not in given]
    extra = [path for path in given if path not in planned]
    problems = [
        Problem("missing leaf", path, "the plan has it, the tree does not", _fix("add it", path, extra))
        for path in missing
    ]
    problems += [
        Problem("extra leaf", path, "the tree has it, the plan does not", _fix("take it out", path, missing))
        for path in extra
    ]
    return problems + [p for path, leaf in given.items() if path in planned for p in _other(leaf, planned[path])]


def _fix(edit: str, path: str, others: list[str]) -> str:
    """The edit; where leaves of the other side have no partner either, the path may just be written differently."""
    return f"{edit}; {did_you_mean(path, others)}" if others else edit


def _other(leaf: Any, planned: LeafPlan) -> list[Problem]:
    shape, dtype = tuple(jnp.shape(leaf)), str(jnp.result_type(leaf))
    if planned.dtype.startswith("key<") and dtype != planned.dtype:
        old_style = dtype == "uint32" and len(shape) == len(planned.shape) + 1
        fix = "jax.random.wrap_key_data(x)" if old_style else "make it with jax.random.key, of that kind"
        return [Problem("other key", planned.path, f"{dtype} of shape {shape}, planned {planned.dtype}", fix)]
    problems = []
    if shape != planned.shape:
        what = f"shape {shape}, planned {planned.shape}"
        problems.append(Problem("other shape", planned.path, what, "make a new plan for arrays of this shape"))
    if dtype != planned.dtype:
        what = f"dtype {dtype}, planned {planned.dtype}"
        problems.append(Problem("other dtype", planned.path, what, f"convert it: x.astype({planned.dtype!r})"))
    return problems
