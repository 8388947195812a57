"""A global array from a file, read by slices: no process reads or holds more than its devices' part."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Sharding

from outlay.arrays.announcements import exchange, refuse_difference
from outlay.arrays.callback import Read, from_callback
from outlay.core.error_types import PlaceError, Problem
from outlay.core.quantities import counted

_SAVED_AS = "save it with np.save(path, array), or as Zarr"


def from_file(path: str | Path, sharding: Sharding) -> jax.Array:
    """Make a global array from a file; every process calls it, and reads only the slices that its devices hold.

    Args:
        path: a `.npy` file, which is memory-mapped, or the folder of a Zarr array (version 2 or 3), which takes
            TensorStore. Where processes do not share a file system, each needs the file.
        sharding: where the array shall live.

    Returns:
        The array. As everywhere in JAX, 64-bit numbers become 32-bit ones unless `jax_enable_x64` is set.

    Raises:
        PlaceError: a process cannot open the file, the processes find different arrays in it, or its shape cannot have
            the sharding.

    Example:
        >>> tmp = getfixture("tmp_path")
        >>> np.save(tmp / "x.npy", np.arange(16, dtype=np.float32))
        >>> rows = jax.NamedSharding(outlay.mesh(x=8), P("x"))
        >>> outlay.arrays.from_file(tmp / "x.npy", rows).addressable_shards[7].data.tolist()
        [14.0, 15.0]
    """
    path = Path(path)
    try:
        stored, fault = _opened(path), None
    except _Unreadable as error:
        stored, fault = None, error.args
    said = exchange({"fault": fault, "array": stored and f"{stored.shape} {stored.dtype}"})
    faults = [
        Problem("cannot read", f"process {process}", *one["fault"]) for process, one in enumerate(said) if one["fault"]
    ]
    if faults or stored is None:
        raise PlaceError(
            f"{path} cannot be read by {len(faults)} of {counted(len(said), 'process', 'processes')}", faults
        )
    refuse_difference([one["array"] for one in said], f"the array in {path}", "give all processes the same file")
    return from_callback(stored.read, stored.shape, stored.dtype, sharding)


@dataclass(frozen=True)
class Stored:
    """An array in a file: what it is, and how to read a slice of it.

    Attributes:
        shape: its shape.
        dtype: its dtype.
        read: gives the part of it that an index of slices, one a dim, stands for.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    read: Read


class _Unreadable(Exception):
    """What is wrong with a file, and the fix."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what, fix)


def _opened(path: Path) -> Stored:
    if path.is_dir():
        return _zarr(path)
    if not path.exists():
        raise _Unreadable("there is no such file", f"look into {path.parent}")
    if path.suffix != ".npy":
        raise _Unreadable(
            f"{path.suffix or 'a file without a suffix'} is not a format that slices are read from", _SAVED_AS
        )
    return _npy(path)


def _npy(path: Path) -> Stored:
    def mapped() -> np.ndarray:
        return np.load(path, mmap_mode="r", allow_pickle=False)

    try:
        array = mapped()
    except (ValueError, OSError, EOFError) as error:
        raise _Unreadable(f"numpy cannot map it: {error}", _SAVED_AS) from error
    # Mapped anew for every slice: the pages of one are given back before the next is read.
    return Stored(array.shape, array.dtype, lambda index: np.array(mapped()[index]))


_ZARR = {"zarr.json": "zarr3", ".zarray": "zarr"}


def _zarr(path: Path) -> Stored:
    driver = next((driver for name, driver in _ZARR.items() if (path / name).is_file()), None)
    if driver is None:
        raise _Unreadable(
            f"the folder holds none of {', '.join(_ZARR)}, so it is no Zarr array", "give an array's own folder"
        )
    try:
        import tensorstore
    except ImportError as error:
        raise _Unreadable(
            "Zarr is read through TensorStore, which is not installed", "pip install tensorstore"
        ) from error
    spec = {"driver": driver, "kvstore": {"driver": "file", "path": str(path.resolve())}}
    try:
        store = tensorstore.open(spec, open=True, read=True).result()
    except ValueError as error:
        raise _Unreadable(f"TensorStore cannot open it: {error}", "write the array anew") from error
    return Stored(tuple(store.shape), np.dtype(store.dtype.numpy_dtype), lambda index: store[index].read().result())
