"""What is declared the same on several devices, and is not. JAX reads such an array from one device and never looks."""

from __future__ import annotations

import collections

import jax
import numpy as np

from outlay.report.device_ids import format_devices
from outlay.report.verify.host import is_key


def differing_copies(array: jax.Array) -> str:
    """In words, whether devices that should hold the same piece of an array hold different bits; empty if not."""
    if is_key(array):
        array = jax.random.key_data(array)
    copies = collections.defaultdict(list)
    for shard in array.addressable_shards:
        copies[str(shard.index)].append(shard)
    odd, most = [], 0
    for shards in copies.values():
        first = np.asarray(shards[0].data).tobytes()
        different = [shard.device.id for shard in shards[1:] if np.asarray(shard.data).tobytes() != first]
        if different:
            odd += different
            most = max(most, len(shards))
    if not odd:
        return ""
    return f"declared the same on {most} devices, but differs: {format_devices(odd)} hold other bits"
