"""Find which devices exchange with one another, and along which mesh axes.

Groups are read from the list, iota and mesh forms of `replica_groups`, and from the pairs of a permutation.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Sequence

import numpy as np

from outlay.analysis.hlo.hlo_module import HloModule, Instruction

Groups = tuple[tuple[int, ...], ...]

_LIST = re.compile(r"\{([\d,\s]*+)\}")
_NUMBER = re.compile(r"\d{1,9}")
_IOTA = re.compile(r"\[([\d,]++)\](?:<=\[([\d,]++)\])?+(?:T\(([\d,]++)\))?+")
_MESH = re.compile(r"mesh\[([^\]]*+)\]")
_MESH_AXIS = re.compile(r"'?([^'=,\s]++)'?=(\d{1,9})")
_DEVICE_IDS = re.compile(r"device_ids=\(([^)]*+\)?[^)]*+)\)")
_AXIS_USED = re.compile(r"'?([^'=,:{}\s]++)'?(?::\((\d{1,9})\)(\d{1,9}))?")


def groups_of(module: HloModule, instruction: Instruction) -> Groups:
    """Return the groups of a collective, as positions in the program's device assignment.

    Args:
        module: the program.
        instruction: the collective; for a permutation, its (source, target) pairs are returned.

    Returns:
        The groups; empty if the text is not understood.
    """
    attributes = instruction.attributes
    pairs = attributes.get("source_target_pairs")
    if pairs is not None:
        numbers = read_groups(pairs, module.num_devices)
        return numbers if all(len(pair) == 2 for pair in numbers) else ()
    text = attributes.get("replica_groups", "{}")
    if "device_ids" in attributes:  # in the mesh form, permuted devices follow a comma outside of brackets
        text += f", device_ids={attributes['device_ids']}"
    return _as_positions(text, module, instruction)


def _as_positions(text: str, module: HloModule, instruction: Instruction) -> Groups:
    """Translate the numbers of groups to positions; their meaning depends on two other attributes."""
    num_partitions, num_replicas = module.num_partitions, module.num_replicas
    attributes = instruction.attributes
    if attributes.get("use_global_device_ids") == "true":
        return read_groups(text, num_partitions * num_replicas)
    if "channel_id" not in attributes:  # replicas; each partition exchanges with the same one of other replicas
        return tuple(
            tuple(replica * num_partitions + partition for replica in group)
            for group in read_groups(text, num_replicas)
            for partition in range(num_partitions)
        )
    if instruction.opcode.startswith(
        ("all-reduce", "all-gather", "reduce-scatter")
    ):  # replicas, with all their partitions
        return tuple(
            tuple(replica * num_partitions + partition for replica in group for partition in range(num_partitions))
            for group in read_groups(text, num_replicas)
        )
    return tuple(
        tuple(replica * num_partitions + partition for partition in group)
        for replica in range(num_replicas)
        for group in read_groups(text, num_partitions)
    )


@functools.lru_cache(maxsize=4096)
def read_groups(text: str, num_members: int) -> Groups:
    """Parse the groups of an attribute.

    Args:
        text: `{{0,1},{2,3}}`, `[2,4]<=[4,2]T(1,0)`, `mesh['a'=4,'b'=2] {'b'}`; `{}` means all in one group.
        num_members: the most members of all groups together.

    Returns:
        The groups; empty if the text is not understood.

    Examples:
        >>> read_groups("[2,2]<=[2,2]T(1,0)", 4)
        ((0, 2), (1, 3))
        >>> read_groups("mesh['data'=2,'model'=2] {'model'}", 4)
        ((0, 1), (2, 3))
        >>> read_groups("{}", 3)
        ((0, 1, 2),)
    """
    text = text.strip()
    try:
        if text.startswith("mesh["):
            return _mesh_groups(text, num_members)
        if text.startswith("["):
            return _rows(read_iota(text, num_members))
    except (ValueError, ZeroDivisionError):  # sizes that do not match
        return ()
    if not text.startswith("{"):
        return ()
    listed = tuple(_numbers(group) for group in _LIST.findall(text))
    if any(number >= num_members for group in listed for number in group):
        return ()
    return tuple(group for group in listed if group) or (tuple(range(num_members)),)


def read_iota(text: str, num_members: int) -> np.ndarray:
    """Parse `[2,4]<=[4,2]T(1,0)`: count up to eight as a 4x2 array, transpose it, and reshape it to 2x4.

    Raises:
        ValueError: the text is not understood, or counts more members than there are.
    """
    form = _IOTA.match(text)
    if form is None:
        raise ValueError(text)
    shape = _numbers(form[1])
    dims = _numbers(form[2]) if form[2] else shape
    _check_size(dims, num_members)
    order = _numbers(form[3]) if form[3] else tuple(range(len(dims)))
    return np.arange(math.prod(dims)).reshape(dims).transpose(order).reshape(shape)


def _mesh_groups(text: str, num_members: int) -> Groups:
    mesh, used = _MESH.match(text), text[text.rfind("{") :]
    axes = [(name, int(size)) for name, size in _MESH_AXIS.findall(mesh[1])] if mesh else []
    sizes = [size for _, size in axes]
    _check_size(sizes, num_members)
    device_ids = _device_ids(text, math.prod(sizes), num_members)
    parts = [(name, int(before or 1), int(size or 0)) for name, before, size in _AXIS_USED.findall(used)]
    if not {name for name, _, _ in parts} <= {name for name, _ in axes}:
        raise ValueError(text)
    return _rows(_group_by(device_ids, axes, parts))


def _group_by(device_ids: np.ndarray, axes: list[tuple[str, int]], used: list[tuple[str, int, int]]) -> np.ndarray:
    """Return device ids with a row per group: the used axes come last, in the order in which they are named.

    An axis that is used in part, as in `'a':(2)4`, is treated as three: before the part, the part, after it.
    """
    dims: list[int] = []
    moved: dict[tuple[str, int], int] = {}
    for name, size in axes:
        before = 1
        for _, start, length in sorted((one for one in used if one[0] == name), key=lambda one: one[1]):
            part = length or size
            dims += [start // before, part]
            moved[name, start] = len(dims) - 1
            before = start * part
        dims.append(size // before)
    last = [moved[name, start] for name, start, _ in used]
    first = [dim for dim in range(len(dims)) if dim not in last]
    return device_ids.reshape(dims).transpose(first + last).reshape(-1, math.prod(dims[dim] for dim in last))


def _device_ids(text: str, size: int, num_members: int) -> np.ndarray:
    """Return the devices of the mesh in order; on TPUs they need not count up."""
    given = _DEVICE_IDS.search(text)
    if given is None:
        return np.arange(size)
    if given[1].startswith("["):
        dims, _, order = given[1].partition("T")
        return read_iota(f"[{size}]<={dims.strip()}{'T' + order if order else ''}", num_members)
    listed = _numbers(given[1])
    if sorted(listed) != list(range(size)):
        raise ValueError(listed)
    return np.asarray(listed)


def _check_size(sizes: list[int] | tuple[int, ...], num_members: int) -> None:
    if not sizes or not 0 < math.prod(sizes) <= num_members:
        raise ValueError(sizes)


def _rows(array: np.ndarray) -> Groups:
    if array.ndim != 2:
        raise ValueError(array.shape)
    return tuple(tuple(row) for row in array.tolist())


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, _NUMBER.findall(text)))


def axes_of(
    groups: Sequence[Sequence[int]], mesh_axes: Sequence[tuple[str, int]], *, permutation: bool | None = None
) -> tuple[str, ...]:
    """Return the mesh axes along which the members of a group differ.

    Args:
        groups: groups of positions in the device assignment, which is row-major over the mesh, whatever the devices'
            ids are; for a permutation, its (source, target) pairs.
        mesh_axes: name and size of each axis, in the mesh's order.
        permutation: whether these are pairs; by default they are if a device occurs in two of them.

    Returns:
        The axes in the mesh's order; empty if the groups are not whole axes, or if nothing is exchanged.

    Examples:
        >>> mesh = (("data", 2), ("model", 4))
        >>> axes_of(((0, 1, 2, 3), (4, 5, 6, 7)), mesh), axes_of(((0, 4), (1, 5), (2, 6), (3, 7)), mesh)
        (('model',), ('data',))
        >>> axes_of(((0, 1), (1, 2), (2, 3), (3, 0)), mesh)  # a ring
        ('model',)
        >>> axes_of(((0, 1), (2, 3), (4, 5), (6, 7)), mesh)  # half of an axis
        ()
    """
    # Hundreds of collectives of a program share a few sets of groups.
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
    # The members of a group differ along these axes only; as many members as positions means that none is left out.
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
