"""Leaves of the state that live in the memory of the host: fetched at the start of a step, sent back at its end."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding

from outlay.arrays.shardings import HOST, OnHost, sharding
from outlay.core.error_types import Problem, ProgramError
from outlay.core.paths import map_with_paths
from outlay.core.quantities import counted
from outlay.layout.plan import Plan

Step = Callable[[Any, Any], tuple[Any, Any]]


def fetching(step: Callable[..., Any], plan: Plan, mesh: Mesh) -> Callable[..., Any]:
    """A function of a state that first copies what the state has on the host to the devices.

    What it returns is on the devices; see `sending_back`.

    Args:
        step: takes a state, and anything after it.
        plan: the plan of the state.
        mesh: the mesh of the plan.
    """
    away = _on_host(plan, mesh)
    if not away:
        return step

    def fetch(path: str, leaf: Any) -> Any:
        return jax.device_put(leaf, jax.memory.Space.Device) if path in away else leaf

    @functools.wraps(step)
    def fetched(state: Any, *args: Any) -> Any:
        with jax.named_scope("from_host"):  # the name by which reports know these copies
            state = map_with_paths(fetch, state)
        return step(state, *args)

    return fetched


def sending_back(step: Step, plan: Plan, mesh: Mesh) -> Step:
    """A step that copies what its new state has on the host back there.

    Args:
        step: the step.
        plan: the plan of the state.
        mesh: the mesh of the plan.
    """
    away = _on_host(plan, mesh)
    if not away:
        return step

    move = jax.reshard if AxisType.Explicit in mesh.axis_types else jax.lax.with_sharding_constraint

    def send(path: str, leaf: Any) -> Any:
        if path not in away:
            return leaf
        split = move(leaf, NamedSharding(mesh, away[path].spec))
        return jax.device_put(split, jax.memory.Space.Host)

    @functools.wraps(step)
    def sent(state: Any, batch: Any) -> tuple[Any, Any]:
        new_state, outputs = step(state, batch)
        with jax.named_scope("to_host"):
            return map_with_paths(send, new_state), outputs

    return sent


def out_shardings(state: Any) -> Any:
    """Where a compiled step is to leave its state; open where only `sending_back` can say it.

    JAX asks a compiled program whether its results are in the right memory, and a program for GPUs that are not here
    knows nothing of memories.

    Args:
        state: the state as shardings.
    """
    return jax.tree.map(lambda at: None if isinstance(at, OnHost) else at, state)


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
    head = f"{counted(len(problems), 'value')} cannot be kept on the host:"
    raise ProgramError("\n".join([head, *(problem.text() for problem in problems)]))
