"""Slice a global array, under a sharding of its own; only the data in the slice travels."""

from __future__ import annotations

import functools
import operator
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from outlay.arrays.check_arrays import check_fits
from outlay.arrays.shardings import auto_sharding, with_auto_types, with_sharding_of
from outlay.core.error_types import PlaceError, Problem
from outlay.core.quantities import counted

Range = tuple[int, int, int]


def slice_of(x: jax.Array, index: Any, sharding: NamedSharding | None = None) -> jax.Array:
    """Cut a slice out of a global array; every process calls it.

    Beyond `x[3:9]`: the sharding of the result is given and not left to the compiler, so that each process can read it;
    a slice that reaches beyond the array is an error and is not cut short; and it works on Explicit meshes.

    Args:
        x: an array over a mesh, of any number of processes.
        index: as in `x[index]`: integers, slices with positive steps, `...`; write it with `np.s_[3:9, 0]`.
        sharding: where the slice is to live, on the devices of `x`; by default every device gets a copy.

    Returns:
        The slice. Without `sharding`, `np.asarray` of it works in every process.

    Raises:
        PlaceError: the index does not fit the array, or the sharding does not fit the slice; every dim is listed.

    Example:
        >>> x = jax.device_put(jnp.arange(16), jax.NamedSharding(outlay.mesh(x=8), P("x")))
        >>> np.asarray(outlay.arrays.slice_of(x, np.s_[3:9]))
        array([3, 4, 5, 6, 7, 8], dtype=int32)
    """
    if not isinstance(x.sharding, NamedSharding):
        kind = type(x.sharding).__name__
        raise PlaceError(f"slice_of takes an array over a mesh, but this one has a {kind}\n  fix: use x[index] instead")
    ranges, dims = _ranges(index, x.shape)
    shape = tuple(len(range(*ranges[dim])) for dim in dims)
    target = sharding or NamedSharding(x.sharding.mesh, PartitionSpec())
    if set(target.device_set) != set(x.sharding.device_set):
        raise PlaceError(
            f"the slice is to live on {len(target.device_set)} devices that are not the {len(x.sharding.device_set)} "
            "of the array\n  fix: use a sharding over the array's own mesh"
        )
    check_fits([("", shape)], target)
    result = _cut(ranges, dims, auto_sharding(target))(with_auto_types(x))
    return with_sharding_of(result, target)


@functools.lru_cache(maxsize=256)
def _cut(ranges: tuple[Range, ...], dims: tuple[int, ...], target: NamedSharding) -> Any:
    """Compile the slice with static bounds: with dynamic ones XLA would all-gather the array."""

    def take(x: jax.Array) -> jax.Array:
        starts, stops, steps = zip(*ranges, strict=True) if ranges else ((), (), ())
        sliced = jax.lax.slice(x, starts, stops, steps)
        return sliced.reshape([sliced.shape[dim] for dim in dims])

    return jax.jit(take, out_shardings=target)


def _ranges(index: Any, shape: tuple[int, ...]) -> tuple[tuple[Range, ...], tuple[int, ...]]:
    """Return start, stop and step for every dim, and the dims that remain."""
    entries = list(index) if isinstance(index, tuple) else [index]
    if Ellipsis in entries:
        at = entries.index(Ellipsis)
        entries[at : at + 1] = [slice(None)] * (len(shape) - len(entries) + 1)
    if len(entries) > len(shape):
        raise PlaceError(
            f"the index has {len(entries)} entries, the array {shape} has {len(shape)} dims\n"
            f"  fix: use at most {counted(len(shape), 'entry', 'entries')}"
        )
    entries += [slice(None)] * (len(shape) - len(entries))
    ranges = [_range(entry, size, dim) for dim, (entry, size) in enumerate(zip(entries, shape, strict=True))]
    problems = [each for each in ranges if isinstance(each, Problem)]
    if problems:
        raise PlaceError(f"the index does not fit the array {shape}: {counted(len(problems), 'problem')}", problems)
    dims = tuple(dim for dim, entry in enumerate(entries) if isinstance(entry, slice))
    return tuple(each for each in ranges if not isinstance(each, Problem)), dims


def _range(entry: Any, size: int, dim: int) -> Range | Problem:
    where = f"dim {dim}"
    if not isinstance(entry, slice):
        try:
            position = operator.index(entry)
        except TypeError:
            what = f"{entry!r} is neither a number nor a slice"
            return Problem("unknown index", where, what, "use integers and slices; for the rest, x[array] inside jit")
        if not -size <= position < size:
            return Problem("out of range", where, f"index {position}, size {size}", f"use 0 to {size - 1}")
        return position % size, position % size + 1, 1
    if entry.step is not None and entry.step < 1:
        return Problem("unknown step", where, f"step {entry.step}", "use a positive step, then jnp.flip")
    outside = [end for end in (entry.start, entry.stop) if end is not None and not -size <= end <= size]
    if outside:
        text = f"{'' if entry.start is None else entry.start}:{'' if entry.stop is None else entry.stop}"
        return Problem("out of range", where, f"slice {text}, size {size}", f"use bounds from 0 to {size}")
    start, stop, step = entry.indices(size)
    return start, max(start, stop), step  # x[5:3] is empty, as in NumPy; lax.slice would refuse it
