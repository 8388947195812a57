"""Send arrays from the process that has each to all processes of a mesh, in one collective for all of them."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from outlay.core.jax_compat import copy_to
from outlay.graph.encoding import Encoding, num_words, pack, unpack

_PROCESSES = "processes"


class ProcessExchange:
    """An exchange that all processes take part in, without waiting: each packs its arrays into words, and gathers all.

    One device of each process takes part, since `jax.device_put` between processes does not work for all hardware.

    Args:
        devices: the devices of the mesh.
        items: what each process sends: shape, dtype and encoding by name.
    """

    def __init__(
        self,
        devices: Sequence[jax.Device],
        items: Mapping[int, Mapping[Hashable, tuple[jax.ShapeDtypeStruct, Encoding]]],
    ) -> None:
        first: dict[int, jax.Device] = {}
        for device in devices:
            first.setdefault(device.process_index, device)
        self._processes = sorted(first)
        self._items = {process: dict(items.get(process, {})) for process in self._processes}
        self._own = self._items[jax.process_index()]
        self._device = first[jax.process_index()]
        gateways = np.array([first[process] for process in self._processes])
        self._mesh = Mesh(gateways, (_PROCESSES,), axis_types=(AxisType.Auto,))
        sizes = [sum(num_words(*item) for item in sent.values()) for sent in self._items.values()]
        # A process without anything to send takes part all the same.
        self._num_words = max(1, *sizes)

    @property
    def device(self) -> jax.Device:
        """The device of this process that receives."""
        return self._device

    def __call__(self, own: Mapping[Any, jax.Array]) -> dict[Hashable, jax.Array]:
        """Return all arrays by name, on this process's device.

        Args:
            own: those of this process; of one on several devices, the first device sends its copy.
        """
        here = [own[name].addressable_data(0) for name in self._own]
        words = self._pack(copy_to(here, [self._device] * len(here)))
        shape = (len(self._processes), self._num_words)
        spread = NamedSharding(self._mesh, P(_PROCESSES))
        whole = self._gather(jax.make_array_from_single_device_arrays(shape, spread, [words]))
        return dict(zip(self._names, self._unpack(whole.addressable_data(0)), strict=True))

    @functools.cached_property
    def _names(self) -> list[Hashable]:
        return [name for sent in self._items.values() for name in sent]

    @functools.cached_property
    def _pack(self) -> Any:
        encodings: list[Encoding] = [encoding for _, encoding in self._own.values()]

        shapes = [like.shape for like, _ in self._own.values()]

        def packed(arrays: Sequence[jax.Array]) -> jax.Array:
            # The words of a piece would be read as those of what stands behind it.
            assert [array.shape for array in arrays] == shapes, f"{[array.shape for array in arrays]}, not {shapes}"
            parts = [pack(array, each) for array, each in zip(arrays, encodings, strict=True)]
            words = jnp.concatenate([jnp.zeros(0, jnp.uint32), *parts])
            return jnp.pad(words, (0, self._num_words - len(words)))[None]

        return jax.jit(packed, out_shardings=jax.sharding.SingleDeviceSharding(self._device))

    @functools.cached_property
    def _gather(self) -> Any:
        def gathered(words: jax.Array) -> jax.Array:
            return jax.lax.all_gather(words[0], _PROCESSES)

        return jax.jit(jax.shard_map(gathered, mesh=self._mesh, in_specs=P(_PROCESSES), out_specs=P(), check_vma=False))

    @functools.cached_property
    def _unpack(self) -> Any:
        def unpacked(words: jax.Array) -> list[jax.Array]:
            arrays = []
            for row, sent in zip(words, self._items.values(), strict=True):
                start = 0
                for like, encoding in sent.values():
                    stop = start + num_words(like, encoding)
                    arrays.append(unpack(row[start:stop], like, encoding))
                    start = stop
            return arrays

        return jax.jit(unpacked)
