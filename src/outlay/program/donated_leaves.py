"""What a call may donate: leaves that were not used up before, and that share no memory with others."""

from __future__ import annotations

from typing import Any

import jax

from outlay.core.jax_compat import memory_of


def without_shared_memory(state: Any, batch: Any) -> tuple[Any, Any]:
    """Copy leaves of state and batch that share memory with an earlier leaf.

    Tied weights, or a target network set to the parameters, are one array; donating it twice ends the process.
    """
    seen: set[int] = set()

    def one(leaf: Any) -> Any:
        memory = memory_of(leaf) if isinstance(leaf, jax.Array) else None
        if memory is None or memory not in seen:
            seen.update(() if memory is None else (memory,))
            return leaf
        return jax.device_put(leaf, leaf.sharding, may_alias=False) if leaf.committed else leaf.copy()

    return jax.tree.map(one, state), jax.tree.map(one, batch)
