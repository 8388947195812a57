"""Read global arrays slice by slice, from a function or a file: each process reads only what its devices hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding, SingleDeviceSharding

from outlay.arrays.check_arrays import check_fits
from outlay.arrays.host_values import Refused, check_dtype, take_array
from outlay.arrays.process_agreement import check_same, exchange
from outlay.arrays.sharding_blocks import as_index, blocks, bounds_text, shape_of
from outlay.core.error_types import PlaceError, Problem
from outlay.core.input_file import check_folder, check_input
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
        dtype: dtype of the array, and of what `read` returns; 64 bits count as 32 unless `jax_enable_x64` is set.
        sharding: where the array is to live, over the devices of any number of processes.

    Raises:
        PlaceError: the shape cannot have the sharding, or pieces have the wrong shape or dtype, or values that JAX
            cannot hold.

    Example:
        >>> rows = jax.NamedSharding(outlay.mesh(x=8), P("x"))
        >>> x = outlay.arrays.from_callback(lambda index: np.arange(16)[index], (16,), int, rows)
        >>> x.sharding.shard_shape(x.shape), int(x[15])
        ((2,), 15)
    """
    array, problems = read_pieces(read, shape, dtype, sharding)
    if array is None:
        raise PlaceError(
            f"{counted(len(problems), 'piece')} of a global array {tuple(shape)} "
            f"{plural(len(problems), 'differs', 'differ')} from what was asked for",
            problems,
        )
    return array


def read_pieces(
    read: Read, shape: Sequence[int], dtype: Any, sharding: Sharding, name: str = "x"
) -> tuple[jax.Array | None, list[Problem]]:
    """Make a global array as `from_callback` does; or return None, and the problems of its pieces.

    Args:
        read: returns the part under an index.
        shape: global shape.
        dtype: dtype of the array.
        sharding: where it is to live.
        name: the name of the array in problems.
    """
    shape = tuple(shape)
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return _read_keys(read, shape, dtype, sharding, name)
    try:
        check_dtype(dtype)
    except Refused as odd:
        return None, [odd.at(name)]
    canonical = jax.dtypes.canonicalize_dtype(np.dtype(dtype).newbyteorder("="))
    check_fits([("", shape)], sharding)
    pieces: list[jax.Array] = []
    problems: list[Problem] = []
    for bounds, devices in blocks(shape, sharding, process=jax.process_index()).items():
        where = f"{name}{bounds_text(bounds)}"
        try:
            given = read(as_index(bounds))
            piece = np.asarray(take_array(given))
        except Refused as odd:
            problems.append(odd.at(where))
            continue
        problems += _piece_problems(piece, shape_of(bounds), canonical, getattr(given, "dtype", piece.dtype), where)
        if not problems:  # after the first problem the rest is only looked at, not kept
            # A device takes a piece when it can: without waiting, a slow one would leave all of them on the host.
            pieces += jax.block_until_ready(_put_on_each(piece, devices, sharding))
    if problems:
        return None, problems
    return jax.make_array_from_single_device_arrays(shape, sharding, pieces, dtype=canonical), []


def _read_keys(
    read: Read, shape: tuple[int, ...], dtype: Any, sharding: Sharding, name: str
) -> tuple[jax.Array | None, list[Problem]]:
    """Read keys, whose data travels as plain integers: a key has no NumPy form."""
    of_one = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct((), dtype))
    odd: list[Problem] = []
    impl: Any = None

    def words(index: tuple[slice, ...]) -> np.ndarray:
        nonlocal impl
        keys = read(index[: len(shape)])
        if isinstance(keys, jax.Array) and keys.dtype == dtype:
            impl = jax.random.key_impl(keys)
            return np.asarray(jax.random.key_data(keys))
        what = f"{getattr(keys, 'dtype', type(keys).__name__)}, asked for {dtype}"
        odd.append(Problem("other key", name, what, "jax.random.wrap_key_data(x), or keys of that kind"))
        return np.zeros([each.stop - each.start for each in index], of_one.dtype)

    data, problems = read_pieces(words, (*shape, *of_one.shape), of_one.dtype, sharding, name)
    if data is None or odd:
        return None, odd or problems
    return jax.random.wrap_key_data(data, impl=impl), []


def _put_on_each(piece: np.ndarray, devices: list[jax.Device], sharding: Sharding) -> list[jax.Array]:
    targets = [SingleDeviceSharding(device, memory_kind=sharding.memory_kind) for device in devices]
    if devices[0].platform == "cpu" and piece.ctypes.data % _ALIGNED == 0:
        piece = piece.copy()
    return jax.device_put([piece] * len(targets), targets)


def _piece_problems(
    piece: np.ndarray, shape: tuple[int, ...], dtype: np.dtype, given: Any, where: str
) -> list[Problem]:
    problems = []
    if piece.shape != shape:
        what = f"shape {piece.shape}, asked for {shape}"
        problems.append(Problem("other shape", where, what, "return exactly the part that the index selects"))
    if piece.dtype != dtype:
        what = f"dtype {given}, asked for {dtype}"
        problems.append(Problem("other dtype", where, what, f"convert it, or pass dtype={str(given)!r}"))
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
        PlaceError: a process cannot open the file, processes see different arrays in it, it holds values that JAX
            cannot hold, such as text or integers beyond its dtype, or its shape cannot have the sharding.

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
        check_dtype(stored.dtype)
    except Unreadable as error:
        stored, fault = None, error.args
    except Refused as odd:
        stored, fault = None, odd.args[1:]
    # If one process raised alone, the others would wait for its devices; so all learn of it and raise.
    answers = exchange({"fault": fault, "array": stored and f"{stored.shape} {stored.dtype}"})
    faults = [(process, answer["fault"]) for process, answer in enumerate(answers) if answer["fault"]]
    if faults or stored is None:
        count = f"{len(faults)} of {counted(len(answers), 'process', 'processes')}"
        problems = [Problem("cannot read", f"process {process}", *fault) for process, fault in faults]
        raise PlaceError(f"{path} cannot be read by {count}", problems)
    check_same([answer["array"] for answer in answers], f"the array in {path}", "give all processes the same file")
    array, problems = read_pieces(stored.read, stored.shape, stored.dtype, sharding, str(path))
    if jax.dtypes.canonicalize_dtype(stored.dtype.newbyteorder("=")) != stored.dtype:
        # One process alone may have read what is out of range.
        lists = exchange([[problem.kind, problem.where, problem.what, problem.fix] for problem in problems])
        problems = [Problem(*each) for each in dict.fromkeys(tuple(one) for each in lists for one in each)]
    if array is None or problems:
        raise PlaceError(f"{path} holds values that JAX cannot hold:", problems)
    return array


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
        check_input(path)
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
        check_folder(path)
        return in_tensorstore({"driver": driver, "kvstore": {"driver": "file", "path": str(path.resolve())}})
    except (OSError, ValueError) as error:
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
