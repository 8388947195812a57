"""Leaves of the state that live in the memory of the host: fetched at the start of a step, sent back at its end."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from outlay.core.errors import Problem, ProgramError
from outlay.core.paths import map_with_paths
from outlay.layout.plan import Plan
from outlay.place.shardings import HOST, sharding

Step = Callable[[Any, Any], tuple[Any, Any]]


def fetching(
    step: Callable[[Any, Any], Any], plan: Plan, state: Any, mesh: Mesh
) -> tuple[Callable[[Any, Any], Any], Any]:
    """A step that copies what its state has on the host to the devices first, and the shapes of that state.

    It leaves the new state on the devices: the `out_shardings` of the compiled step send it back.

    Args:
        step: the step.
        plan: its plan.
        state: the state as shapes.
        mesh: the mesh of the plan.
    """
    away = {leaf.path: sharding(leaf, mesh) for leaf in plan.state if leaf.stored == "host"}
    if not away:
        return step, state

    def shape(path: str, leaf: Any) -> Any:
        # JAX takes a shape that says nothing for one in the device's memory, and refuses it.
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=away[path]) if path in away else leaf

    def fetch(path: str, leaf: Any) -> Any:
        return jax.device_put(leaf, away[path].with_memory_kind("device")) if path in away else leaf

    @functools.wraps(step)
    def fetched(state: Any, batch: Any) -> Any:
        with jax.named_scope("from_host"):
            state = map_with_paths(fetch, state)
        return step(state, batch)

    return fetched, map_with_paths(shape, state)


def refuse_without_host_memory(plan: Plan, memories: Sequence[str]) -> None:
    """Raise where a plan keeps something on the host, and the devices cannot reach their host's memory.

    Args:
        plan: the plan.
        memories: JAX's names of those that a device reaches; none where that is not known, as of a device that is only
            compiled for.

    Raises:
        ProgramError: with every leaf.
    """
    leaves = [leaf for leaf in plan if leaf.stored == "host"]
    if not leaves or not memories or HOST in memories:
        return
    what = f"a rule keeps it on the host, but these devices reach no {HOST} memory, only {', '.join(memories)}"
    problems = [
        Problem("no host memory", leaf.path, what, f"delete rule {leaf.rule}, or another target") for leaf in leaves
    ]
    head = f"{len(problems)} value(s) cannot be kept on the host:"
    raise ProgramError("\n".join([head, *(problem.text() for problem in problems)]))
