"""Which leaves of a graph's state have rows that devices share, and how they are cut and filled up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from outlay.core.error_types import ProgramError
from outlay.core.paths import flatten_paths, map_with_paths, matches
from outlay.graph.recorded_outputs import RecordedOutput
from outlay.graph.step_graph import StepGraph


@dataclass(frozen=True, eq=False)
class Rows:
    """Which leaves of a graph's state have rows, split in pieces of the same size over the devices of an axis.

    Where the devices do not divide the rows, some repeat the last one at the end. They are computed like the others,
    but no part reads them and they are cut off from what is kept, so they do nothing.

    Attributes:
        graph: the graph.
        num: how many rows each part has that is computed by rows.
        axis: the mesh axis.
        num_devices: its size.
    """

    graph: StepGraph
    num: Mapping[str, int]
    axis: str
    num_devices: int

    @classmethod
    def of(cls, graph: StepGraph, names: tuple[str, ...], state: Any, axis: str, num_devices: int) -> Rows:
        """The rows of these parts, of which those are computed as a whole that have none."""
        num = {}
        for name in names:
            sizes = [
                leaf.shape[0]
                for path, leaf in flatten_paths(state[name])[0]
                if any(matches(pattern, path) for pattern in graph.parts[name].by_rows)
            ]
            if len(set(sizes)) > 1:
                raise ProgramError(
                    f"the leaves of {name} that are said to be by rows differ in their rows: {sorted(set(sizes))}\n"
                    "  fix: patterns in Part.by_rows of leaves whose first dim is that of the outputs"
                )
            if sizes:
                num[name] = sizes[0]
        return cls(graph, num, axis, num_devices)

    def has(self, path: str) -> bool:
        """Whether the leaf of the state at this path has rows."""
        part, _, within = path.partition(".")
        return part in self.num and any(matches(pattern, within) for pattern in self.graph.parts[part].by_rows)

    def spec(self, path: str) -> P:
        """How a leaf of the state is split."""
        return P(self.axis) if self.has(path) else P()

    def padded(self, num: int) -> int:
        """So many rows, filled up so that the devices divide them."""
        return -(-num // self.num_devices) * self.num_devices

    def pad(self, state: Any) -> Any:
        """A state with rows filled up; those added repeat the last, since zeros might make what is no number."""

        def pad(path: str, leaf: Any) -> Any:
            num = leaf.shape[0] if self.has(path) else 0
            return leaf[jnp.minimum(jnp.arange(self.padded(num)), num - 1)] if self.padded(num) > num else leaf

        return map_with_paths(pad, state)

    def crop(self, state: Any) -> Any:
        """A state without the rows that `pad` has added."""

        def crop(path: str, leaf: Any) -> Any:
            num = self.num[path.partition(".")[0]] if self.has(path) else 0
            return leaf[:num] if self.padded(num) > num else leaf

        return map_with_paths(crop, state)

    def piece(self, state: Any) -> Any:
        """This device's piece of a padded state, inside `jax.shard_map`."""
        place = jax.lax.axis_index(self.axis)

        def piece(path: str, leaf: Any) -> Any:
            if not self.has(path):
                return leaf
            here = leaf.shape[0] // self.num_devices
            return jax.lax.dynamic_slice_in_dim(leaf, place * here, here)

        return map_with_paths(piece, state)

    def buffer_spec(self, one: RecordedOutput) -> P:
        """How what a device keeps is a part of the whole."""
        return P(None, self.axis) if self.has_rows(one) else P()

    def has_rows(self, one: RecordedOutput) -> bool:
        """Whether rows are kept of this."""
        return one.part in self.num and (one.is_port or self.has(one.address))

    def crop_buffers(self, recorded_outputs: tuple[RecordedOutput, ...], buffers: Any) -> Any:
        """What was kept, without the rows that `pad` has added."""
        return {
            one.key: buffers[one.key][:, : self.num[one.part]] if self.has_rows(one) else buffers[one.key]
            for one in recorded_outputs
        }
