"""Leaves of the state that live in the memory of the host: fetched before a step, and sent back after it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from outlay.arrays.shardings import HOST, OnHost, mover, sharding
from outlay.core.error_types import Problem, ProgramError
from outlay.core.paths import map_with_paths
from outlay.core.quantities import counted
from outlay.layout.plan import Plan
from outlay.program.modes import Step
from outlay.program.passes import Planned


def fetch(step: Step, planned: Planned) -> Step:
    """Wrap a step as a pass does: see `fetch_from_host`."""
    return fetch_from_host(step, planned.plan, planned.mesh)


def fetch_from_host(step: Callable[..., Any], plan: Plan, mesh: Mesh) -> Callable[..., Any]:
    """Wrap a function of a state: leaves on the host are copied to the devices first.

    What it returns is on the devices; see `send`.

    Args:
        step: takes a state, and anything after it.
        plan: the plan of the state.
        mesh: the mesh of the plan.
    """
    away = _on_host(plan, mesh)
    if not away:
        return step

    def to_device(path: str, leaf: Any) -> Any:
        return jax.device_put(leaf, jax.memory.Space.Device) if path in away else leaf

    @functools.wraps(step)
    def fetched(state: Any, *args: Any) -> Any:
        with jax.named_scope("from_host"):  # the name by which reports know these copies
            state = map_with_paths(to_device, state)
        return step(state, *args)

    return fetched


def send(step: Step, planned: Planned) -> Step:
    """Wrap a step: leaves of the new state that belong on the host are copied back there."""
    mesh = planned.mesh
    away, move = _on_host(planned.plan, mesh), mover(mesh)

    def back(path: str, leaf: Any) -> Any:
        if path not in away:
            return leaf
        split = move(leaf, NamedSharding(mesh, away[path].spec))
        return jax.device_put(split, jax.memory.Space.Host)

    @functools.wraps(step)
    def sent(state: Any, batch: Any) -> tuple[Any, Any]:
        new_state, outputs = step(state, batch)
        with jax.named_scope("to_host"):
            return map_with_paths(back, new_state), outputs

    return sent


def out_shardings(state: Any) -> Any:
    """Return the output shardings of a step's state; None for leaves that `send` places.

    JAX checks that the results of a compiled program are in the right memory, and a program compiled for absent GPUs
    does not know its memories.

    Args:
        state: the state as shardings.
    """
    return jax.tree.map(lambda at: None if isinstance(at, OnHost) else at, state)


def typed(state: Any, plan: Plan, mesh: Mesh) -> Any:
    """Return a state as shapes with the sharding of leaves on the host; without one, JAX assumes device memory."""
    away = _on_host(plan, mesh)

    def one(path: str, leaf: Any) -> Any:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=away[path]) if path in away else leaf

    return map_with_paths(one, state)


def _on_host(plan: Plan, mesh: Mesh) -> dict[str, Any]:
    return {leaf.path: sharding(leaf, mesh) for leaf in plan.state if leaf.stored == "host"}


def check(planned: Planned) -> None:
    """Raise if the devices of a program cannot reach their host's memory; see `check_host_memory`."""
    reached = [memory.kind for memory in planned.mesh.devices.flat[0].addressable_memories()]
    check_host_memory(planned.plan, reached)


def check_host_memory(plan: Plan, memories: Sequence[str]) -> None:
    """Raise if a plan keeps something on the host and the devices cannot reach their host's memory.

    Args:
        plan: the plan.
        memories: JAX's names of the memories that a device reaches; empty where unknown, as for compile-only devices.

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
    raise ProgramError(head, problems)
