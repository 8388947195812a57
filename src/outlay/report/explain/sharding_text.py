"""XLA's text of a sharding, read as the spec that a user would write."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence

import numpy as np

from outlay.layout.placement import Dims

MeshAxes = Sequence[tuple[str, int]]

_TILES = re.compile(r"devices=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_NAMED = re.compile(r"mesh\[.*?\],\s*\[(.*)\]")
_DIM = re.compile(r"\{([^{}]*)\}")
_AXIS = re.compile(r"'([^']+)'")


def read_sharding(text: str, mesh_axes: MeshAxes) -> Dims | None:
    """The mesh axes that split each dim; None where they are no axes of this mesh, or the text is not understood.

    Args:
        text: such as `{devices=[4,1,2]<=[8] last_tile_dim_replicate}` or `{mesh['x'=4,'y'=2], [{'x'}, {}]}`.
        mesh_axes: name and size of each axis, outermost first.

    >>> mesh = (("x", 4), ("y", 2))
    >>> read_sharding("{mesh['x'=4,'y'=2], [{'y'}, {}, {'x'}]}", mesh)
    (('y',), (), ('x',))
    >>> read_sharding("{devices=[1,8]<=[4,2]T(1,0)}", mesh), read_sharding("{replicated}", mesh)
    (((), ('y', 'x')), ())
    """
    if "replicated}" in text and "devices=" not in text:
        return ()
    named = _NAMED.search(text)
    if named:
        return tuple(tuple(_AXIS.findall(dim)) for dim in _DIM.findall(named[1]))
    tiles = _TILES.search(text)
    return _from_tiles(tiles, "last_tile_dim_replicate" in text, mesh_axes) if tiles else None


def _from_tiles(tiles: re.Match[str], whole_last: bool, mesh_axes: MeshAxes) -> Dims | None:
    shape, counted = _numbers(tiles[1]), _numbers(tiles[2])
    order = _numbers(tiles[3]) if tiles[3] else tuple(range(len(counted)))
    if math.prod(counted) != math.prod(size for _, size in mesh_axes):
        return None
    wanted = np.arange(math.prod(counted)).reshape(counted).transpose(order).reshape(shape)
    dims = shape[:-1] if whole_last else shape
    wanted = np.sort(wanted.reshape(*dims, -1))
    return next((found for found in _candidates(dims, mesh_axes) if _same(found, dims, mesh_axes, wanted)), None)


def _candidates(dims: Sequence[int], mesh_axes: MeshAxes) -> Iterator[Dims]:
    """Every way to split so many dims into so many tiles by whole axes."""
    axes = [(name, size) for name, size in mesh_axes if size > 1]

    def split(sizes: Sequence[int], left: list[tuple[str, int]]) -> Iterator[Dims]:
        if not sizes:
            yield ()
            return
        for length in range(len(left) + 1):
            for chosen in itertools.permutations(left, length):
                if math.prod(size for _, size in chosen) == sizes[0]:
                    rest = [axis for axis in left if axis not in chosen]
                    yield from ((tuple(name for name, _ in chosen), *more) for more in split(sizes[1:], rest))

    yield from split(list(dims), axes)


def _same(found: Dims, dims: Sequence[int], mesh_axes: MeshAxes, wanted: np.ndarray) -> bool:
    names = [name for name, _ in mesh_axes]
    used = [names.index(name) for axes in found for name in axes]
    left = [dim for dim in range(len(names)) if dim not in used]
    devices = np.arange(math.prod(size for _, size in mesh_axes)).reshape([size for _, size in mesh_axes])
    return bool((np.sort(devices.transpose(*used, *left).reshape(*dims, -1)) == wanted).all())


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))
