"""Build a global array from the piece that each process has; shapes are compared before anything is made."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from outlay.arrays.check_arrays import check_fits
from outlay.arrays.from_slices import from_callback
from outlay.arrays.host_values import Refused, take_array
from outlay.arrays.process_agreement import check_all_present, exchange
from outlay.arrays.sharding_blocks import Bounds, blocks, shape_of
from outlay.core.error_types import PlaceError, Problem
from outlay.core.quantities import counted
from outlay.layout.placement import spec_dims, spec_text

Shape = tuple[int, ...]


def from_pieces(
    piece: Any, sharding: NamedSharding, shape: Sequence[int] | None = None, *, check: bool = True
) -> jax.Array:
    """Make a global array from each process's own piece; every process calls it with its own.

    Beyond `jax.make_array_from_process_local_data`: the processes compare shapes and dtypes first, so that all raise
    the same error, which lists every process. Otherwise a process whose piece happens to fit would go on and wait for
    the others for ever.

    Args:
        piece: the part that the devices of this process hold, as one array; for batches, this process's samples.
        sharding: where the array is to live.
        shape: global shape; by default it follows from the shapes of the pieces.
        check: whether to compare, which takes a round of communication; False for a loop that is known to fit.

    Raises:
        PlaceError: the pieces do not form one array, or hold what JAX cannot, such as masked values or integers beyond
            its dtype; every process's is listed.

    Example:
        >>> rows = jax.NamedSharding(outlay.mesh(x=8), P("x"))
        >>> outlay.arrays.from_pieces(np.arange(16), rows).sharding.shard_shape((16,))  # one process, so all is its own
        (2,)
    """
    if isinstance(piece, jax.Array) and jnp.issubdtype(piece.dtype, jax.dtypes.prng_key):
        words = jax.random.key_data(piece)
        whole = None if shape is None else (*shape, *words.shape[piece.ndim :])
        return jax.random.wrap_key_data(
            from_pieces(words, sharding, whole, check=check), impl=jax.random.key_impl(piece)
        )
    given = str(getattr(piece, "dtype", ""))
    piece, fault = _taken(piece)
    own = {"shape": piece.shape, "dtype": str(piece.dtype), "requested": shape and list(shape), "fault": fault}
    own["given"] = given or own["dtype"]
    calls = dict(enumerate(exchange(own))) if check else {jax.process_index(): own}
    if faults := [Problem(*call["fault"]) for call in calls.values() if call["fault"]]:
        raise PlaceError(f"{counted(len(faults), 'piece')} of {len(calls)} cannot be placed:", faults)
    check_all_present(sharding, "from_pieces")
    grid = _grid(sharding, max(len(call["shape"]) for call in calls.values()))
    parts = [_part(process, call, grid, sharding) for process, call in calls.items()]
    whole = _global_shape(parts, shape, sharding)
    check_fits([("", whole)], sharding)
    box = _box(whole, sharding, jax.process_index())
    return from_callback(lambda index: piece[_shifted(index, box)], whole, piece.dtype, sharding)


def _taken(piece: Any) -> tuple[np.ndarray, list[str] | None]:
    """Return a piece as an array that JAX takes; or an empty one, and the problem."""
    try:
        return np.asarray(take_array(piece)), None
    except Refused as odd:
        kind, what, fix = odd.args
        return np.zeros(0), [kind, f"the piece of process {jax.process_index()}", what, fix]


@dataclass(frozen=True)
class _Part:
    """The piece of one process.

    Attributes:
        process: the number of the process.
        shape, dtype: those of the piece, as JAX holds it.
        given: the dtype that the process gave.
        requested: the global shape that the process asked for, if any.
        num_blocks: the number of blocks along each dim that its devices hold.
        grid: the number of blocks along each dim of the whole array.
    """

    process: int
    shape: Shape
    dtype: str
    given: str
    requested: Shape | None
    num_blocks: Shape
    grid: Shape

    @property
    def implies(self) -> Shape | None:
        """The global shape that follows from this piece, or None if none does."""
        if len(self.shape) != len(self.grid):
            return None
        sizes = [divmod(size * of, held) for size, held, of in zip(self.shape, self.num_blocks, self.grid, strict=True)]
        return None if any(rest for _, rest in sizes) else tuple(size for size, _ in sizes)

    def makes(self, whole: Shape) -> bool:
        """Return whether this is the process's piece of a global shape."""
        return len(whole) == len(self.shape) == len(self.grid) and self.shape == self.expected(whole)

    def expected(self, whole: Shape) -> Shape:
        """Return the shape of the process's piece of a global shape."""
        return tuple(size * held // of for size, held, of in zip(whole, self.num_blocks, self.grid, strict=True))


def _part(process: int, call: Any, grid: Shape, sharding: NamedSharding) -> _Part:
    requested = None if call["requested"] is None else tuple(call["requested"])
    return _Part(
        process,
        tuple(call["shape"]),
        call["dtype"],
        call["given"],
        requested,
        shape_of(_box(grid, sharding, process)),
        grid,
    )


def _grid(sharding: NamedSharding, rank: int) -> Shape:
    """Return the number of blocks along each dim."""
    check_fits([("", (0,) * rank)], sharding)  # of the rank alone: a size of 0 is always divisible
    sizes = sharding.mesh.shape
    return tuple(math.prod(sizes[axis] for axis in axes) for axes in spec_dims(sharding.spec, rank))


def _box(shape: Shape, sharding: NamedSharding, process: int) -> Bounds:
    """Return the bounds of the part of an array that a process's devices hold; raise unless it is one box."""
    held = blocks(shape, sharding, process=process)
    by_dim = list(zip(*held, strict=True))
    box = tuple((min(start for start, _ in pieces), max(stop for _, stop in pieces)) for pieces in by_dim)
    if sum(math.prod(shape_of(bounds)) for bounds in held) != math.prod(shape_of(box)):
        raise PlaceError(
            f"process {process} holds {len(held)} separate blocks under {spec_text(sharding.spec)}, "
            "which do not form one array\n"
            "  fix: use a mesh in which each process's devices are neighbours, or outlay.arrays.from_callback"
        )
    return box


def _global_shape(parts: Sequence[_Part], shape: Sequence[int] | None, sharding: NamedSharding) -> Shape:
    """Return the global shape that all pieces form; raise with the shape of every piece if they form none."""
    whole = tuple(shape) if shape is not None else next((part.implies for part in parts if part.implies), None)
    are_alike = len({(part.dtype, part.requested) for part in parts}) == 1
    if whole is not None and are_alike and all(part.makes(whole) for part in parts):
        return whole
    count = counted(len(parts), "process", "processes")
    what = f"the pieces of {count} do not form one array split {spec_text(sharding.spec)}"
    raise PlaceError(what, [_as_problem(part, whole) for part in parts])


def _as_problem(part: _Part, whole: Shape | None) -> Problem:
    what = f"shape {part.shape} {part.given}"
    if part.requested is not None:
        what += f", asked for a global shape {part.requested}"
    elif part.implies is not None:
        what += f", which implies the global shape {part.implies}"
    if whole is None or len(whole) != len(part.grid):
        return Problem("piece", f"process {part.process}", what, "give pieces of the same rank")
    fix = f"give a piece of shape {part.expected(whole)}, and one dtype everywhere; pad what is too short"
    return Problem("piece", f"process {part.process}", what, fix)


def _shifted(index: tuple[slice, ...], box: Bounds) -> tuple[slice, ...]:
    """Translate an index into the array to an index into this process's piece."""
    return tuple(slice(part.start - start, part.stop - start) for part, (start, _) in zip(index, box, strict=True))
