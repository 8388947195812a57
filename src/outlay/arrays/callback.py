"""A global array from a function that gives any slice of it: each process asks only for what its devices hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding, SingleDeviceSharding

from outlay.arrays.bounds import as_index, blocks, bounds_text, shape_of
from outlay.arrays.misfits import refuse_misfits
from outlay.core.error_types import PlaceError, Problem
from outlay.core.quantities import counted

# A CPU device does not copy memory that is aligned so, whatever `may_alias` says: it would see what is written there
# later, and a mapped file that is cut short would end the process.
_ALIGNED = 64

Read = Callable[[tuple[slice, ...]], Any]


def from_callback(read: Read, shape: Sequence[int], dtype: Any, sharding: Sharding) -> jax.Array:
    """Make a global array from a function that gives any slice of it.

    What it adds to `jax.make_array_from_callback`: a slice that several devices hold is read once, no more than one is
    on the host at a time, and pieces of a wrong shape or dtype are all named.

    Args:
        read: takes an index, one slice a dim with its start and stop, and returns that part as an array.
        shape: global shape.
        dtype: dtype of the array, and of what `read` returns.
        sharding: where the array shall live, over the devices of any number of processes.

    Raises:
        PlaceError: the shape cannot have the sharding, or pieces have other shapes or dtypes.

    Example:
        >>> rows = jax.NamedSharding(outlay.mesh(x=8), P("x"))
        >>> x = outlay.arrays.from_callback(lambda index: np.arange(16)[index], (16,), int, rows)
        >>> x.sharding.shard_shape(x.shape), int(x[15])
        ((2,), 15)
    """
    shape, kept = tuple(shape), jax.dtypes.canonicalize_dtype(dtype)
    refuse_misfits([("", shape)], sharding)
    held: list[jax.Array] = []
    problems: list[Problem] = []
    for bounds, devices in blocks(shape, sharding, process=jax.process_index()).items():
        piece = np.asarray(read(as_index(bounds)))
        problems += _wrong(piece, shape_of(bounds), np.dtype(dtype), f"x{bounds_text(bounds)}")
        if not problems:
            held += _on_each(piece.astype(kept, copy=False), devices, sharding)
    if problems:
        raise PlaceError(
            f"{counted(len(problems), 'piece')} of a global array {shape} "
            f"differ{'s' if len(problems) == 1 else ''} from what was asked for",
            problems,
        )
    return jax.make_array_from_single_device_arrays(shape, sharding, held, dtype=kept)


def _on_each(piece: np.ndarray, devices: list[jax.Device], sharding: Sharding) -> list[jax.Array]:
    places = [SingleDeviceSharding(device, memory_kind=sharding.memory_kind) for device in devices]
    if devices[0].platform == "cpu" and piece.ctypes.data % _ALIGNED == 0:
        piece = piece.copy()
    return jax.device_put([piece] * len(places), places)


def _wrong(piece: np.ndarray, shape: tuple[int, ...], dtype: np.dtype, where: str) -> list[Problem]:
    problems = []
    if piece.shape != shape:
        what = f"shape {piece.shape}, asked for {shape}"
        problems.append(Problem("other shape", where, what, "return exactly the part that the index names"))
    if piece.dtype != dtype:
        what = f"dtype {piece.dtype}, asked for {dtype}"
        problems.append(Problem("other dtype", where, what, f"convert it, or pass dtype={str(piece.dtype)!r}"))
    return problems
