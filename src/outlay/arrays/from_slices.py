"""Read global arrays slice by slice, from a function or a file: each process reads only what its devices hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding, SingleDeviceSharding

from outlay.arrays.check_arrays import check_fits
from outlay.arrays.process_agreement import check_same, exchange
from outlay.arrays.sharding_blocks import as_index, blocks, bounds_text, shape_of
from outlay.core.error_types import PlaceError, Problem
from outlay.core.quantities import counted, plural

# JAX does not copy memory with this alignment to a CPU device, even with `may_alias=False`: the array would change when
# the memory is written to, and cutting a mapped file short would kill the process.
_ALIGNED = 64

_SAVE = "save it with np.save(path, array), or as Zarr"

Read = Callable[[tuple[slice, ...]], Any]


def from_callback(read: Read, shape: Sequence[int], dtype: Any, sharding: Sharding) -> jax.Array:
    """Make a global array from a function that returns any slice of it.

    Beyond `jax.make_array_from_callback`: a slice that several devices hold is read once, no more than one is on the
    host at a time, and all pieces with a wrong shape or dtype are named.

    Args:
        read: takes an index, one slice with start and stop per dim, and returns that part as an array.
        shape: global shape.
        dtype: dtype of the array, and of what `read` returns.
        sharding: where the array is to live, over the devices of any number of processes.

    Raises:
        PlaceError: the shape cannot have the sharding, or pieces have the wrong shape or dtype.

    Example:
        >>> rows = jax.NamedSharding(outlay.mesh(x=8), P("x"))
        >>> x = outlay.arrays.from_callback(lambda index: np.arange(16)[index], (16,), int, rows)
        >>> x.sharding.shard_shape(x.shape), int(x[15])
        ((2,), 15)
    """
    shape, canonical = tuple(shape), jax.dtypes.canonicalize_dtype(dtype)
    check_fits([("", shape)], sharding)
    pieces: list[jax.Array] = []
    problems: list[Problem] = []
    for bounds, devices in blocks(shape, sharding, process=jax.process_index()).items():
        piece = np.asarray(read(as_index(bounds)))
        problems += _piece_problems(piece, shape_of(bounds), np.dtype(dtype), f"x{bounds_text(bounds)}")
        if not problems:  # after the first problem the rest is only looked at, not kept
            pieces += _put_on_each(piece.astype(canonical, copy=False), devices, sharding)
    if problems:
        raise PlaceError(
            f"{counted(len(problems), 'piece')} of a global array {shape} {plural(len(problems), 'differs', 'differ')} "
            "from what was asked for",
            problems,
        )
    return jax.make_array_from_single_device_arrays(shape, sharding, pieces, dtype=canonical)


def _put_on_each(piece: np.ndarray, devices: list[jax.Device], sharding: Sharding) -> list[jax.Array]:
    targets = [SingleDeviceSharding(device, memory_kind=sharding.memory_kind) for device in devices]
    if devices[0].platform == "cpu" and piece.ctypes.data % _ALIGNED == 0:
        piece = piece.copy()
    return jax.device_put([piece] * len(targets), targets)


def _piece_problems(piece: np.ndarray, shape: tuple[int, ...], dtype: np.dtype, where: str) -> list[Problem]:
    problems = []
    if piece.shape != shape:
        what = f"shape {piece.shape}, asked for {shape}"
        problems.append(Problem("other shape", where, what, "return exactly the part that the index selects"))
    if piece.dtype != dtype:
        what = f"dtype {piece.dtype}, asked for {dtype}"
        problems.append(Problem("other dtype", where, what, f"convert it, or pass dtype={str(piece.dtype)!r}"))
    return problems


def from_file(path: str | Path, sharding: Sharding) -> jax.Array:
    """Make a global array from a file; every process calls it, and reads only the slices of its devices.

    Args:
        path: a `.npy` file, which is memory-mapped, or the folder of a Zarr array (version 2 or 3), which needs
            TensorStore. If the processes do not share a file system, each needs the file.
        sharding: where the array is to live.

    Returns:
        The array. As everywhere in JAX, 64-bit numbers become 32-bit ones unless `jax_enable_x64` is set.

    Raises:
        PlaceError: a process cannot open the file, processes see different arrays in it, or its shape cannot have the
            sharding.

    Example:
        >>> tmp = getfixture("tmp_path")
        >>> np.save(tmp / "x.npy", np.arange(16, dtype=np.float32))
        >>> rows = jax.NamedSharding(outlay.mesh(x=8), P("x"))
        >>> outlay.arrays.from_file(tmp / "x.npy", rows).addressable_shards[7].data.tolist()
        [14.0, 15.0]
    """
    path = Path(path)
    try:
        stored, fault = _open(path), None
    except Unreadable as error:
        stored, fault = None, error.args
    # If one process raised alone, the others would wait for its devices; so all learn of it and raise.
    answers = exchange({"fault": fault, "array": stored and f"{stored.shape} {stored.dtype}"})
    faults = [(process, answer["fault"]) for process, answer in enumerate(answers) if answer["fault"]]
    if faults or stored is None:
        count = f"{len(faults)} of {counted(len(answers), 'process', 'processes')}"
        problems = [Problem("cannot read", f"process {process}", *fault) for process, fault in faults]
        raise PlaceError(f"{path} cannot be read by {count}", problems)
    check_same([answer["array"] for answer in answers], f"the array in {path}", "give all processes the same file")
    return from_callback(stored.read, stored.shape, stored.dtype, sharding)


@dataclass(frozen=True)
class StoredArray:
    """An array in a file, and how to read a slice of it.

    Attributes:
        shape: its shape.
        dtype: its dtype.
        read: returns the part of the array under an index with one slice per dim.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    read: Read


class Unreadable(Exception):
    """A file cannot be read slice by slice.

    Args:
        what: what is wrong with it.
        fix: the edit that helps.
    """

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what, fix)


def _open(path: Path) -> StoredArray:
    if path.is_dir():
        return _zarr(path)
    if not path.exists():
        raise Unreadable("there is no such file", f"check what is in {path.parent}")
    if path.suffix != ".npy":
        raise Unreadable(f"slices cannot be read from {path.suffix or 'a file without a suffix'}", _SAVE)
    return _npy(path)


def _npy(path: Path) -> StoredArray:
    def mapped() -> np.ndarray:
        return np.load(path, mmap_mode="r", allow_pickle=False)

    try:
        array = mapped()
    except (ValueError, OSError, EOFError) as error:
        raise Unreadable(f"numpy cannot map it: {error}", _SAVE) from error
    # Mapped again for every slice: the pages of one slice are released before the next is read.
    return StoredArray(array.shape, array.dtype, lambda index: np.array(mapped()[index]))


_ZARR = {"zarr.json": "zarr3", ".zarray": "zarr"}


def _zarr(path: Path) -> StoredArray:
    driver = next((driver for name, driver in _ZARR.items() if (path / name).is_file()), None)
    if driver is None:
        raise Unreadable(
            f"the folder holds none of {', '.join(_ZARR)}, so it is not a Zarr array", "give the folder of one array"
        )
    try:
        return in_tensorstore({"driver": driver, "kvstore": {"driver": "file", "path": str(path.resolve())}})
    except ValueError as error:
        raise Unreadable(f"TensorStore cannot open it: {error}", "write the array again") from error


def in_tensorstore(spec: dict[str, Any]) -> StoredArray:
    """Open an array that TensorStore can read, by its specification there.

    Raises:
        Unreadable: TensorStore is not installed.
        ValueError: there is no such array.
    """
    try:
        import tensorstore
    except ImportError as error:
        raise Unreadable("it is read through TensorStore, which is not installed", "pip install tensorstore") from error
    store = tensorstore.open(spec, open=True, read=True).result()
    shape, dtype = tuple(store.shape), np.dtype(store.dtype.numpy_dtype)
    return StoredArray(shape, dtype, lambda index: np.asarray(store[index].read().result()))
