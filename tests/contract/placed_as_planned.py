"""Where arrays live and what moves between devices, read from the arrays and the compiled program themselves."""

from __future__ import annotations

from typing import Any

import jax

import outlay
from outlay.core.paths import flatten_paths
from outlay.layout.plan import Plan


def assert_placed_as_planned(tree: Any, plan: Plan, *, root: str = "") -> None:
    """Compare every leaf's devices, shape of pieces and number of different pieces with the plan's."""
    prefix = f"{root}." if root else ""
    for path, leaf in flatten_paths(tree)[0]:
        planned = plan[f"{prefix}{path}"]
        shards = (
            jax.random.key_data(leaf).addressable_shards
            if str(leaf.dtype).startswith("key<")
            else leaf.addressable_shards
        )
        assert {shard.device.id for shard in shards} == set(planned.device_ids), path
        assert leaf.sharding.shard_shape(leaf.shape) == planned.local_shape, path
        num_pieces = len({str(shard.index) for shard in shards})
        assert len(shards) // num_pieces == planned.num_copies, path


def blocks(array: jax.Array) -> list[list[int]]:
    """The ids of the devices that hold each different piece, pieces in the order of their place in the array."""
    held: dict[tuple[int, ...], list[int]] = {}
    for shard in array.addressable_shards:
        held.setdefault(tuple(piece.start or 0 for piece in shard.index), []).append(shard.device.id)
    return [sorted(held[start]) for start in sorted(held)]


def num_collectives(program: outlay.Program) -> int:
    """How many collectives the compiled step holds."""
    names = ("all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter", "collective-broadcast")
    return sum(program.compiled.as_text().count(f" {name}{form}(") for name in names for form in ("", "-start"))
