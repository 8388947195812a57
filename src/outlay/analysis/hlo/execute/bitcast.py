"""What a bitcast computes: the same bytes, read in the order of another shape and layout.

A layout says in which order the entries of an array lie in memory: which dim changes fastest, and, on TPUs, in which
tiles (https://openxla.org/xla/tiled_layout). Tiles pad what they do not divide.
"""

from __future__ import annotations

import math
import re
from typing import Any

import jax.numpy as jnp
from jax import lax

from outlay.analysis.hlo.execute.literal import dtype_of
from outlay.analysis.hlo.hlo_module import Shape

_TILES = re.compile(r"T((?:\([\d,*]+\))+)")
_TILE = re.compile(r"\(([\d,]+)\)")
_NUMBER = re.compile(r"\d+")


def bitcast(value: Any, before: Shape, after: Shape) -> Any:
    """Return the bytes of an array as an array of another shape, layout or type.

    Args:
        value: the array.
        before: its shape and layout.
        after: those of the result.

    Raises:
        ValueError: the two do not hold the same number of bytes.
    """
    for with_tiles in (True, False):
        flat = _to_memory(value, _tiles(before) if with_tiles else (), _order(before))
        flat = _as_dtype(flat, after)
        tiles, order = _tiles(after) if with_tiles else (), _order(after)
        if flat is not None and flat.size == _memory_size(after.dims, tiles, order):
            return _from_memory(flat, after.dims, tiles, order)
    raise ValueError(f"{before.dtype}{list(before.dims)} and {after.dtype}{list(after.dims)} differ in bytes")


def _order(shape: Shape) -> tuple[int, ...]:
    """Return the dims, slowest first; layouts name them fastest first."""
    listed = tuple(map(int, _NUMBER.findall(shape.layout.partition(":")[0])))
    return listed[::-1] if len(listed) == len(shape.dims) else tuple(range(len(shape.dims)))


def _tiles(shape: Shape) -> tuple[tuple[int, ...], ...]:
    tiles = _TILES.search(shape.layout)
    if tiles is None or "*" in tiles[1]:
        return ()
    return tuple(tuple(map(int, tile.split(","))) for tile in _TILE.findall(tiles[1]))


def _tiled_dims(dims: list[int], tiles: tuple[tuple[int, ...], ...]) -> list[int]:
    for tile in tiles:
        dims = [1] * (len(tile) - len(dims)) + dims
        head, tail = dims[: len(dims) - len(tile)], dims[len(dims) - len(tile) :]
        dims = head + [-(-size // part) for size, part in zip(tail, tile, strict=True)] + list(tile)
    return dims


def _memory_size(dims: tuple[int, ...], tiles: tuple[tuple[int, ...], ...], order: tuple[int, ...]) -> int:
    return math.prod(_tiled_dims([dims[dim] for dim in order], tiles))


def _to_memory(value: Any, tiles: tuple[tuple[int, ...], ...], order: tuple[int, ...]) -> Any:
    value = lax.transpose(value, order)
    for tile in tiles:
        value = value.reshape((1,) * (len(tile) - value.ndim) + value.shape)
        num_head = value.ndim - len(tile)
        pad = [(0, 0)] * num_head + [(0, -size % part) for size, part in zip(value.shape[num_head:], tile, strict=True)]
        value = jnp.pad(value, pad)
        split = [
            piece for size, part in zip(value.shape[num_head:], tile, strict=True) for piece in (size // part, part)
        ]
        value = value.reshape(value.shape[:num_head] + tuple(split))
        value = lax.transpose(value, _tiles_last(num_head, len(tile)))
    return value.reshape(-1)


def _from_memory(flat: Any, dims: tuple[int, ...], tiles: tuple[tuple[int, ...], ...], order: tuple[int, ...]) -> Any:
    slowest_first = [dims[dim] for dim in order]
    sizes = [slowest_first]
    for tile in tiles:
        sizes.append(_tiled_dims(sizes[-1], (tile,)))
    value = flat.reshape(sizes[-1])
    for tile, whole in zip(reversed(tiles), reversed(sizes[:-1]), strict=True):
        whole = [1] * (len(tile) - len(whole)) + list(whole)
        num_head = len(whole) - len(tile)
        back = _inverse(_tiles_last(num_head, len(tile)))
        value = lax.transpose(value, back)
        padded = [-(-size // part) * part for size, part in zip(whole[num_head:], tile, strict=True)]
        value = value.reshape(whole[:num_head] + padded)
        value = value[tuple(slice(0, size) for size in whole)]
    return lax.transpose(value.reshape(slowest_first), _inverse(order))


def _tiles_last(num_head: int, num_tiled: int) -> tuple[int, ...]:
    """Return the order that puts the tile's own dims last, after the dims that count tiles."""
    counts = range(num_head, num_head + 2 * num_tiled, 2)
    return (*range(num_head), *counts, *(dim + 1 for dim in counts))


def _inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def _as_dtype(flat: Any, after: Shape) -> Any:
    """Return the bytes as entries of another type; None if their number is not one of whole entries."""
    dtype = dtype_of(after.dtype)
    if dtype is None or flat.dtype == dtype:
        return flat
    if flat.dtype == jnp.dtype(bool):
        flat = flat.astype(jnp.uint8)
    if after.dtype == "pred":
        dtype = jnp.dtype(jnp.uint8)
    wide, narrow = flat.dtype.itemsize, dtype.itemsize
    if narrow > wide:
        if flat.size % (narrow // wide):
            return None
        flat = flat.reshape(-1, narrow // wide)
    read = lax.bitcast_convert_type(flat, dtype).reshape(-1)
    return read.astype(bool) if after.dtype == "pred" else read
