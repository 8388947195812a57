"""A global array from the pieces that the processes hold already, with the shapes compared before anything is made."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from outlay.arrays.announcements import exchange, refuse_absent
from outlay.arrays.bounds import Bounds, blocks, shape_of
from outlay.arrays.callback import from_callback
from outlay.arrays.misfits import refuse_misfits
from outlay.core.error_types import PlaceError, Problem
from outlay.core.quantities import counted
from outlay.layout.placement import spec_dims, spec_text

Shape = tuple[int, ...]


def from_pieces(
    piece: Any, sharding: NamedSharding, shape: Sequence[int] | None = None, *, check: bool = True
) -> jax.Array:
    """Make a global array from each process's own piece; every process calls it with its own.

    What it adds to `jax.make_array_from_process_local_data`: the processes compare their shapes and dtypes first, so
    where one is wrong all of them raise the same error, which lists every process. Without that, the process whose
    piece happens to fit goes on and waits for the others for ever.

    Args:
        piece: what the devices of this process shall hold, as one numpy array: for batches, this process's samples.
        sharding: where the array shall live.
        shape: global shape; without it, it follows from the shapes of the pieces.
        check: whether to compare, which takes a round between the processes; False for a loop that is known to fit.

    Raises:
        PlaceError: the pieces do not make one array; every process's shape and dtype is listed.

    Example:
        >>> rows = jax.NamedSharding(outlay.mesh(x=8), P("x"))
        >>> outlay.arrays.from_pieces(np.arange(16), rows).sharding.shard_shape((16,))  # one process, so all is its own
        (2,)
    """
    piece = np.asarray(piece)
    own = {"shape": piece.shape, "dtype": str(piece.dtype), "wanted": shape and list(shape)}
    said = dict(enumerate(exchange(own))) if check else {jax.process_index(): own}
    refuse_absent(sharding, "from_pieces")
    grid = _grid(sharding, max(len(one["shape"]) for one in said.values()))
    parts = [_part(process, one, grid, sharding) for process, one in said.items()]
    whole = _global_shape(parts, shape, sharding)
    refuse_misfits([("", whole)], sharding)
    box = _box(whole, sharding, jax.process_index())
    return from_callback(lambda index: piece[_shifted(index, box)], whole, piece.dtype, sharding)


@dataclass(frozen=True)
class _Part:
    """What one process brought: `implies` is the global shape that its shape means, None if there is no such."""

    process: int
    shape: Shape
    dtype: str
    wanted: Shape | None
    held: Shape
    grid: Shape

    @property
    def implies(self) -> Shape | None:
        if len(self.shape) != len(self.grid):
            return None
        sizes = [divmod(size * of, held) for size, held, of in zip(self.shape, self.held, self.grid, strict=True)]
        return None if any(rest for _, rest in sizes) else tuple(size for size, _ in sizes)

    def makes(self, whole: Shape) -> bool:
        """Whether this is its piece of a global shape."""
        return len(whole) == len(self.shape) == len(self.grid) and self.shape == self.expected(whole)

    def expected(self, whole: Shape) -> Shape:
        """The shape of its piece of a global shape."""
        return tuple(size * held // of for size, held, of in zip(whole, self.held, self.grid, strict=True))


def _part(process: int, said: Any, grid: Shape, sharding: NamedSharding) -> _Part:
    held = shape_of(_box(grid, sharding, process))
    wanted = None if said["wanted"] is None else tuple(said["wanted"])
    return _Part(process, tuple(said["shape"]), said["dtype"], wanted, held, grid)


def _grid(sharding: NamedSharding, rank: int) -> Shape:
    """How many pieces each dim is cut into."""
    refuse_misfits([("", (0,) * rank)], sharding)
    sizes = sharding.mesh.shape
    return tuple(math.prod(sizes[axis] for axis in axes) for axes in spec_dims(sharding.spec, rank))


def _box(shape: Shape, sharding: NamedSharding, process: int) -> Bounds:
    """The part of the array that a process's devices hold, which must be one box."""
    held = blocks(shape, sharding, process=process)
    by_dim = list(zip(*held, strict=True))
    box = tuple((min(start for start, _ in pieces), max(stop for _, stop in pieces)) for pieces in by_dim)
    if sum(math.prod(shape_of(bounds)) for bounds in held) != math.prod(shape_of(box)):
        raise PlaceError(
            f"what process {process} holds under {spec_text(sharding.spec)} is {len(held)} blocks with others' between "
            "them, so it has no piece that is one array\n"
            "  fix: a mesh in which each process's devices are neighbours, or outlay.arrays.from_callback"
        )
    return box


def _global_shape(parts: Sequence[_Part], shape: Sequence[int] | None, sharding: NamedSharding) -> Shape:
    """The global shape that all pieces make, or the error that lists them all."""
    whole = tuple(shape) if shape is not None else next((part.implies for part in parts if part.implies), None)
    agreed = len({(part.dtype, part.wanted) for part in parts}) == 1
    if whole is not None and agreed and all(part.makes(whole) for part in parts):
        return whole
    problems = [_as_problem(part, whole) for part in parts]
    raise PlaceError(
        f"the pieces of {counted(len(parts), 'process', 'processes')} do not make one array split "
        f"{spec_text(sharding.spec)}",
        problems,
    )


def _as_problem(part: _Part, whole: Shape | None) -> Problem:
    what = f"shape {part.shape} {part.dtype}"
    if part.wanted is not None:
        what += f", asked for a global shape {part.wanted}"
    elif part.implies is not None:
        what += f", of a global shape {part.implies}"
    if whole is None or len(whole) != len(part.grid):
        return Problem("piece", f"process {part.process}", what, "give pieces of one rank")
    fix = f"give a piece of shape {part.expected(whole)}, and one dtype everywhere; pad what is too short"
    return Problem("piece", f"process {part.process}", what, fix)


def _shifted(index: tuple[slice, ...], box: Bounds) -> tuple[slice, ...]:
    """An index into the array as an index into this process's piece."""
    return tuple(slice(part.start - start, part.stop - start) for part, (start, _) in zip(index, box, strict=True))
