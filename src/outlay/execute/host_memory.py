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



def fetching(step: Callable[..., Any], plan: Plan, mesh: Mesh) -> Callable[..., Any]:
    """A function of a state that first copies what the state has on the host to the devices.

    What it returns is on the devices: the `out_shardings` of a compiled step send the new state back.

    Args:
        step: takes a state, and anything after it.
        plan: the plan of the state.
        mesh: the mesh of the plan.
    """
    away = _on_host(plan, mesh)
    if not away:
        return step

    def fetch(path: str, leaf: Any) -> Any:
        return jax.device_put(leaf, away[path].with_memory_kind("device")) if path in away else leaf

    @functools.wraps(step)
    def fetched(state: Any, *args: Any) -> Any:
        with jax.named_scope("from_host"):  # the name by which reports know these copies
            state = map_with_paths(fetch, state)
        return step(state, *args)

    return fetched


def typed(state: Any, plan: Plan, mesh: Mesh) -> Any:
    """A state as shapes, of which those on the host say so: JAX takes one that says nothing for one on a device."""
    away = _on_host(plan, mesh)

    def one(path: str, leaf: Any) -> Any:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=away[path]) if path in away else leaf

    return map_with_paths(one, state)


def _on_host(plan: Plan, mesh: Mesh) -> dict[str, Any]:
    return {leaf.path: sharding(leaf, mesh) for leaf in plan.state if leaf.stored == "host"}


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
