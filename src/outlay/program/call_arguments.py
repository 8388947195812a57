"""What a call takes: values that JAX can hold, and no memory twice."""

from __future__ import annotations

from typing import Any

import jax

from outlay.arrays.host_values import hold, take_tree
from outlay.core.array_leaves import arrays_only
from outlay.core.error_types import ProgramError
from outlay.core.jax_compat import memory_of


def take_arguments(state: Any, batch: Any) -> tuple[Any, Any]:
    """Return state and batch with each value as JAX takes it.

    Raises:
        ProgramError: JAX cannot hold some, or they are no arrays; all are listed.
    """
    (taken, of_state), (batch, of_batch) = take_tree(state), take_tree(batch, "batch")
    if of_state:  # a whole module of Equinox has functions and texts among its leaves
        taken, of_state = take_tree(arrays_only(state))
    if problems := of_state + of_batch:
        raise ProgramError(hold("state and batch hold", problems), problems)
    return taken, batch


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
