"""Assert that arrays live where a plan says, device by device, from the arrays' own shards."""

from __future__ import annotations

from typing import Any

import jax

from outlay.core.paths import flatten_paths
from outlay.layout.plan import Plan


def assert_placed_as_planned(tree: Any, plan: Plan, *, root: str = "") -> None:
    """Compare every leaf's devices, shape of pieces and number of different pieces with the plan's."""
    prefix = f"{root}." if root else ""
    for path, leaf in flatten_paths(tree)[0]:
        planned = plan[f"{prefix}{path}"]
        shards = jax.random.key_data(leaf).addressable_shards if str(leaf.dtype).startswith("key<") else leaf.addressable_shards
        assert {shard.device.id for shard in shards} == set(planned.device_ids), path
        assert leaf.sharding.shard_shape(leaf.shape) == planned.local_shape, path
        num_pieces = len({str(shard.index) for shard in shards})
        assert len(shards) // num_pieces == planned.num_copies, path
