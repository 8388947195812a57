"""Can a sharding have an array of this shape: its spec's length, and dims that divide."""

from __future__ import annotations

import math
from collections.abc import Iterable

from jax.sharding import AbstractMesh, NamedSharding, Sharding

from outlay.core.errors import PlaceError, Problem
from outlay.layout.placement import spec_dims, spec_text
from outlay.meshes.made import refuse_to_run

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
        raise PlaceError("arrays cannot be put on an AbstractMesh, which has no devices\n  cure: use outlay.mesh(...)")
    refuse_to_run(sharding.mesh, "arrays cannot be put")
    problems = [problem for path, shape in named for problem in misfits(path, tuple(shape), sharding)]
    if problems:
        axes = ", ".join(f"{axis}={size}" for axis, size in sharding.mesh.shape.items())
        raise PlaceError(
            f"{spec_text(sharding.spec)} on mesh {axes} does not fit: {len(problems)} problem(s)", problems
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
