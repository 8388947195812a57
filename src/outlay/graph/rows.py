"""Find which leaves of a graph's state have rows, and how they are split over devices and padded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from outlay.core.error_types import ProgramError
from outlay.core.one_line import OneLine
from outlay.core.paths import flatten_paths, map_with_paths
from outlay.graph.recorded_outputs import RecordedOutput
from outlay.graph.step_graph import StepGraph


@dataclass(frozen=True, eq=False)
class InitByRows(OneLine):
    """An init that can make the rows of a graph's state that one device has, without the others.

    Attributes:
        whole: `whole(key)` is the state.
        some: `some(key, numbers)` is the same state with these rows only of the parts in `numbers`, bit for bit.
    """

    whole: Callable[[Any], Any]
    some: Callable[[Any, Mapping[str, jax.Array]], Any]

    def __call__(self, key: Any) -> Any:
        """Make the whole state."""
        return self.whole(key)


@dataclass(frozen=True, eq=False)
class Rows:
    """The leaves of a graph's state that have rows, split into equal pieces over the devices of an axis.

    If the number of rows is not divisible by the devices, the last row is repeated at the end. The copies are computed
    like the others, but no part reads them and they are removed from what is kept, so they have no effect.

    Attributes:
        graph: the graph.
        num: the number of rows of each part that is computed by rows.
        axis: the mesh axis.
        num_devices: the size of the axis.
    """

    graph: StepGraph
    num: Mapping[str, int]
    axis: str
    num_devices: int

    @classmethod
    def of(cls, graph: StepGraph, names: tuple[str, ...], state: Any, axis: str, num_devices: int) -> Rows:
        """Return the row partition of these parts; a part without rows is replicated."""
        num = {}
        for name in names:
            sizes = {leaf.shape[0] for path, leaf in flatten_paths(state[name])[0] if graph.parts[name].has_rows(path)}
            if len(sizes) > 1:
                raise ProgramError(
                    f"the leaves in by_rows of {name} have different numbers of rows: {sorted(sizes)}\n"
                    "  fix: in Part.by_rows, list patterns of leaves whose first dim is that of the outputs"
                )
            if sizes:
                num[name] = sizes.pop()
        return cls(graph, num, axis, num_devices)

    def has(self, path: str) -> bool:
        """Return whether the leaf of the state at this path has rows."""
        part, _, within = path.partition(".")
        return part in self.num and self.graph.parts[part].has_rows(within)

    def spec(self, path: str) -> P:
        """Return how a leaf of the state is split."""
        return P(self.axis) if self.has(path) else P()

    def padded(self, num: int) -> int:
        """Return a number of rows, rounded up to a multiple of the devices."""
        return -(-num // self.num_devices) * self.num_devices

    def pad(self, state: Any) -> Any:
        """Pad the rows of a state by repeating the last one."""

        def pad(path: str, leaf: Any) -> Any:
            num = leaf.shape[0] if self.has(path) else 0
            # Rows of zeros might compute NaNs, as where a kernel is divided by the sum of a row.
            return leaf[jnp.minimum(jnp.arange(self.padded(num)), num - 1)] if self.padded(num) > num else leaf

        return map_with_paths(pad, state)

    def crop(self, state: Any) -> Any:
        """Remove the rows that `pad` has added to a state."""

        def crop(path: str, leaf: Any) -> Any:
            num = self.num[path.partition(".")[0]] if self.has(path) else 0
            return leaf[:num] if self.padded(num) > num else leaf

        return map_with_paths(crop, state)

    def piece(self, state: Any) -> Any:
        """Return this device's piece of a padded state, inside `jax.shard_map`."""
        index = jax.lax.axis_index(self.axis)

        def piece(path: str, leaf: Any) -> Any:
            if not self.has(path):
                return leaf
            here = leaf.shape[0] // self.num_devices
            return jax.lax.dynamic_slice_in_dim(leaf, index * here, here)

        return map_with_paths(piece, state)

    def init(self, make: Callable[[Any], Any], key: Any, only: Callable[[Any], Any] = lambda state: state) -> Any:
        """Make this device's piece of the padded state, inside `jax.shard_map`.

        Args:
            make: the init; a plain one makes the whole state, which is then cut.
            key: the PRNG key.
            only: selects what is needed of a state.
        """
        if not isinstance(make, InitByRows):
            # The values of a row may depend on all others, as in a kernel that is divided by its sum over them. Summed
            # shard by shard, it would round differently for every number of devices.
            return self.piece(self.pad(jax.lax.optimization_barrier(only(make(key)))))
        index = jax.lax.axis_index(self.axis)
        numbers = {}
        for name, num in self.num.items():
            here = self.padded(num) // self.num_devices
            # Rows beyond the last are copies of it, as those that `pad` adds.
            numbers[name] = jnp.minimum(index * here + jnp.arange(here), num - 1)
        return only(make.some(key, numbers))

    def buffer_spec(self, one: RecordedOutput) -> P:
        """Return how a device's buffer is a part of the whole."""
        return P(None, self.axis) if self.has_rows(one) else P()

    def has_rows(self, one: RecordedOutput) -> bool:
        """Return whether rows are kept of this value."""
        return one.part in self.num and (one.is_port or self.has(one.address))

    def crop_buffers(self, recorded_outputs: tuple[RecordedOutput, ...], buffers: Any) -> Any:
        """Remove the rows that `pad` has added from what was kept."""
        return {
            one.key: buffers[one.key][:, : self.num[one.part]] if self.has_rows(one) else buffers[one.key]
            for one in recorded_outputs
        }
