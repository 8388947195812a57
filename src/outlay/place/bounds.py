"""The distinct blocks that a sharding cuts an array into, and the devices that hold each."""

from __future__ import annotations

from collections.abc import Iterable

import jax
from jax.sharding import Sharding

Bounds = tuple[tuple[int, int], ...]
"""Start and stop in each dim."""


def blocks(shape: tuple[int, ...], sharding: Sharding, *, process: int | None = None) -> dict[Bounds, list[jax.Device]]:
    """Every distinct block, in the order of the devices, with its holders.

    Args:
        shape: the global shape.
        sharding: where the array lives.
        process: only what the devices of this process hold; without it, all.

    Example:
        >>> sharding = jax.NamedSharding(outlay.mesh(x=4, y=2), P("x"))
        >>> {bounds: len(devices) for bounds, devices in blocks((8,), sharding).items()}
        {((0, 2),): 2, ((2, 4),): 2, ((4, 6),): 2, ((6, 8),): 2}
    """
    found: dict[Bounds, list[jax.Device]] = {}
    for device, index in sharding.devices_indices_map(shape).items():
        if process in (None, device.process_index):
            found.setdefault(of_index(index, shape), []).append(device)
    return found


def of_index(index: Iterable[slice], shape: tuple[int, ...]) -> Bounds:
    """The bounds of an index as JAX gives it, where None stands for an end."""
    return tuple(piece.indices(size)[:2] for piece, size in zip(index, shape, strict=True))


def as_index(bounds: Bounds) -> tuple[slice, ...]:
    """Bounds as an index into the array."""
    return tuple(slice(*piece) for piece in bounds)


def shape_of(bounds: Bounds) -> tuple[int, ...]:
    """The shape of a block."""
    return tuple(stop - start for start, stop in bounds)


def bounds_text(bounds: Bounds) -> str:
    """Bounds as people write an index.

    >>> bounds_text(((0, 2), (4, 8)))
    '[0:2, 4:8]'
    """
    return f"[{', '.join(f'{start}:{stop}' for start, stop in bounds)}]"
