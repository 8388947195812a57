"""What moves between neighbouring stages of different processes: a program of the devices of both.

Processes of either stage dispatch it, in the order of the schedule. `jax.device_put` between processes does not work
for all hardware.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, cast

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding

from outlay.program.stages.plain_keys import impl_of, with_impl, without_impl
from outlay.program.stages.scheduled_run import Values
from outlay.program.stages.stage_meshes import is_here, seen_on


class StageExchange:
    """Moves arrays from one stage to another, piece by piece to the device at the same place.

    Args:
        mesh: the mesh of all stages.
        axis: the mesh axis of the stages.
        source: the stage that sends.
        target: the stage that receives.
        shapes: what moves.
        at: where the target takes it.
    """

    def __init__(
        self, mesh: Mesh, axis: str, source: int, target: int, shapes: Sequence[Any], at: Sequence[NamedSharding]
    ) -> None:
        pair = sorted([source, target])
        devices = mesh.devices.take(pair, axis=mesh.axis_names.index(axis))
        both = Mesh(devices, mesh.axis_names, axis_types=(AxisType.Auto,) * devices.ndim)
        self._shapes, self._at = shapes, at
        self._receives = is_here(mesh.devices.take([target], axis=mesh.axis_names.index(axis)))
        # As if both stages had the same values, since each device has one piece either way.
        self._on_both = [NamedSharding(both, sharding.spec) for sharding in at]
        specs = [sharding.spec for sharding in at]
        permutation = [(pair.index(source), pair.index(target))]

        def moved(values: Values) -> Values:
            plain = [jax.lax.ppermute(without_impl(x), axis, permutation) for x in values]
            return [with_impl(x, impl_of(value)) for x, value in zip(plain, values, strict=True)]

        run = jax.shard_map(moved, mesh=both, in_specs=(specs,), out_specs=specs, check_vma=False)
        self._jitted = jax.jit(run, in_shardings=(self._on_both,), out_shardings=self._on_both)

    def lower(self) -> jax.stages.Lowered:
        """Lower the program."""
        return self._jitted.lower([jax.ShapeDtypeStruct(x.shape, x.dtype) for x in self._shapes])

    def __call__(self, compiled: Any, values: Values) -> Values:
        """Return the values on the devices of the target; nothing where this process has none of them.

        Args:
            compiled: the program, compiled.
            values: what moves; nothing where this process has no devices of the source.
        """
        received = compiled(self._given(values) if values else self._given_nothing)
        if not self._receives:
            return []
        return [seen_on(x, at, x.shape) for x, at in zip(received, self._at, strict=True)]

    def _given(self, values: Sequence[jax.Array | None]) -> Values:
        waiting = self._waiting if self._receives else [None] * len(self._at)
        return [self._on(*each) for each in zip(self._shapes, self._on_both, values, waiting, strict=True)]

    @functools.cached_property
    def _given_nothing(self) -> Values:
        return self._given([None] * len(self._at))

    def _on(self, like: Any, on: NamedSharding, *parts: jax.Array | None) -> jax.Array:
        """Return arrays of one stage each as one on the devices of both."""
        own = {shard.device: shard.data for x in parts if x is not None for shard in x.addressable_shards}
        devices = cast(Mesh, on.mesh).devices.flat
        return jax.make_array_from_single_device_arrays(
            like.shape, on, [own[device] for device in devices if device in own]
        )

    @functools.cached_property
    def _waiting(self) -> Values:
        """What stands on the devices of the target, before anything arrives."""
        return [_zeros(x, at) for x, at in zip(self._shapes, self._at, strict=True)]


def _zeros(like: Any, at: NamedSharding) -> jax.Array:
    impls = []

    def as_numbers(x: Any) -> Any:
        impls.append(impl_of(x))
        return without_impl(x)

    plain = jax.eval_shape(as_numbers, like)
    zeros = np.broadcast_to(np.zeros((), plain.dtype), plain.shape)
    return with_impl(jax.make_array_from_callback(plain.shape, at, lambda index: zeros[index]), impls[0])
