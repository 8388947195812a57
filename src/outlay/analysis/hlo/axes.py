"""Which mesh axes a collective runs over."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence


def axes_of(
    groups: Sequence[Sequence[int]], mesh_axes: Sequence[tuple[str, int]], *, permutation: bool | None = None
) -> tuple[str, ...]:
    """The mesh axes along which the members of a group differ.

    Args:
        groups: of positions in the device assignment, which is row-major over the mesh, whatever the devices' ids are;
            of a permutation its (source, target) pairs.
        mesh_axes: name and size of each axis, in the mesh's order.
        permutation: whether these are pairs; if not given they are where a device stands in two of them.

    Returns:
        The axes in the mesh's order; empty where the groups are not whole axes, and where nothing is exchanged.

    Examples:
        >>> mesh = (("data", 2), ("model", 4))
        >>> axes_of(((0, 1, 2, 3), (4, 5, 6, 7)), mesh), axes_of(((0, 4), (1, 5), (2, 6), (3, 7)), mesh)
        (('model',), ('data',))
        >>> axes_of(((0, 1), (1, 2), (2, 3), (3, 0)), mesh)  # a ring
        ('model',)
        >>> axes_of(((0, 1), (2, 3), (4, 5), (6, 7)), mesh)  # half of an axis
        ()
    """
    # Hundreds of collectives of a program have the same few groups.
    return _axes_of(tuple(map(tuple, groups)), tuple(mesh_axes), permutation)


@functools.lru_cache(maxsize=1024)
def _axes_of(
    groups: tuple[tuple[int, ...], ...], mesh_axes: tuple[tuple[str, int], ...], permutation: bool | None
) -> tuple[str, ...]:
    sizes = [size for _, size in mesh_axes]
    members = [member for group in groups for member in group]
    if not members or max(members) >= math.prod(sizes):
        return ()
    if permutation is None:
        permutation = len(set(members)) < len(members)
    varying: set[int] = set()
    for group in groups:
        first = _coordinates(group[0], sizes) if group else []
        for member in group[1:]:
            here = _coordinates(member, sizes)
            varying |= {dim for dim, (one, other) in enumerate(zip(here, first, strict=True)) if one != other}
    # Members of a group differ along these axes only: as many members as positions means that none is left out.
    whole = math.prod(sizes[dim] for dim in varying)
    if not permutation and any(len(set(group)) != whole for group in groups):
        return ()
    return tuple(name for dim, (name, _) in enumerate(mesh_axes) if dim in varying)


def _coordinates(position: int, sizes: list[int]) -> list[int]:
    coordinates = []
    for size in reversed(sizes):
        position, coordinate = divmod(position, size)
        coordinates.append(coordinate)
    return coordinates[::-1]
