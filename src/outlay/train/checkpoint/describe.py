"""What a checkpoint says of itself: its leaves, and who wrote it."""

from __future__ import annotations

import datetime
import socket
from collections.abc import Mapping

import jax
from jax.sharding import NamedSharding

from outlay.core.sizes import num_bytes
from outlay.core.versions import versions
from outlay.meshes.info import MeshInfo
from outlay.train.checkpoint.manifest import SavedLeaf


def saved_leaves(arrays: Mapping[str, jax.Array]) -> tuple[SavedLeaf, ...]:
    """The arrays as facts."""
    return tuple(SavedLeaf(path, x.shape, str(x.dtype), num_bytes(x.shape, x.dtype)) for path, x in arrays.items())


def written_by(arrays: Mapping[str, jax.Array]) -> dict[str, str]:
    """Versions, host, time and devices."""
    meshes = [x.sharding.mesh for x in arrays.values() if isinstance(x.sharding, NamedSharding)]
    widest = max(meshes, key=lambda mesh: mesh.size, default=None)
    installed = versions(("outlay", "jax", "orbax-checkpoint"))
    return {
        **{name: version or "from its source" for name, version in installed.items()},
        "host": socket.gethostname(),
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "devices": str(MeshInfo.of(widest)) if widest is not None else "1 device",
        "processes": str(jax.process_count()),
    }
