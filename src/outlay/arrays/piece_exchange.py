"""Send slabs of arrays between devices of different processes, many at once, and no byte more.

`jax.device_put` between processes does not work for all hardware. So slabs of one shape travel in rounds, in which a
device sends one at most and receives one at most: a permutation, in a program of the devices that it concerns. Their
processes dispatch it, and all processes go through the rounds in the same order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from outlay.arrays.sharding_blocks import Bounds, shape_of

_AXIS = "devices"


class Slab(NamedTuple):
    """What one device sends to another: a part of an array."""

    source: jax.Device
    device: jax.Device
    bounds: Bounds


def rounds(slabs: Iterable[Slab]) -> list[list[Slab]]:
    """Return slabs in rounds: each has one shape, and every device sends and receives once at most.

    Example:
        >>> a, b, c = jax.devices()[:3]
        >>> sent = [Slab(a, b, ((0, 2),)), Slab(b, a, ((2, 4),)), Slab(a, c, ((0, 2),))]
        >>> [len(one) for one in rounds(sent)]
        [2, 1]
    """
    open_rounds: dict[tuple[int, ...], list[list[Slab]]] = {}
    for slab in slabs:
        same_shape = open_rounds.setdefault(shape_of(slab.bounds), [])
        free = (one for one in same_shape if not any(x.source == slab.source or x.device == slab.device for x in one))
        taken = next(free, None)
        if taken is None:
            same_shape.append([slab])
        else:
            taken.append(slab)
    return [one for of_shape in open_rounds.values() for one in of_shape]


def exchanged(slabs: list[Slab], dtype: Any, read: Callable[[Slab], jax.Array]) -> Iterator[tuple[Slab, jax.Array]]:
    """Send the slabs of a round, and yield what arrives at the devices of this process.

    Args:
        slabs: the round.
        dtype: of the array.
        read: returns a slab that a device of this process sends, on that device.
    """
    devices = tuple(sorted({device for slab in slabs for device in slab[:2]}, key=lambda device: device.id))
    here = [device for device in devices if device.process_index == jax.process_index()]
    if not here:
        return
    shape = shape_of(slabs[0].bounds)
    sent, received = ({slab[which]: slab for slab in slabs} for which in (0, 1))
    given = [
        read(sent[device])[None] if device in sent else jax.numpy.zeros((1, *shape), dtype, device=device)
        for device in here
    ]
    numbers = {device: number for number, device in enumerate(devices)}
    run, sharding = _permutation(devices, tuple((numbers[slab.source], numbers[slab.device]) for slab in slabs))
    moved = run(jax.make_array_from_single_device_arrays((len(devices), *shape), sharding, given))
    for shard in moved.addressable_shards:
        if shard.device in received:
            yield received[shard.device], shard.data[0]


@functools.lru_cache(maxsize=256)
def _permutation(devices: tuple[jax.Device, ...], pairs: tuple[tuple[int, int], ...]) -> tuple[Any, NamedSharding]:
    mesh = Mesh(np.array(devices), (_AXIS,), axis_types=(AxisType.Auto,))
    run = jax.shard_map(lambda x: jax.lax.ppermute(x, _AXIS, pairs), mesh=mesh, in_specs=P(_AXIS), out_specs=P(_AXIS))
    return jax.jit(run, donate_argnums=0), NamedSharding(mesh, P(_AXIS))
