"""Make a state where its plan puts it: each device computes its own pieces, if this machine has room for them."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh

from outlay.arrays.shardings import shardings
from outlay.core.array_leaves import num_bytes, placed_by_plan
from outlay.core.error_types import Problem
from outlay.core.quantities import format_bytes
from outlay.layout.plan import Plan

_MAX_NAMED = 4
"""Leaves that are named where there is no room for all."""

Instead = Callable[[Any], "Callable[..., Any] | None"]
"""Takes a traced function, and may return another of the same arguments, which returns its leaves."""


def init_sharded(
    init: Callable[..., Any],
    shapes: Any,
    plan: Plan,
    mesh: Mesh,
    instead: Instead | None = None,
) -> Callable[..., Any]:
    """Compile `init` so that every leaf of its result is computed piece by piece, where the plan puts it.

    Args:
        init: creates the tree; a pure function.
        shapes: the abstract result of `init`, as from `jax.eval_shape`.
        plan: where each leaf lives.
        mesh: the mesh that the plan was made for.
        instead: may return a function to run in place of the traced `init`.

    Example:
        >>> mesh = outlay.mesh(data=8)
        >>> shapes = {"w": jax.ShapeDtypeStruct((16, 4), jnp.float32)}
        >>> plan = outlay.fsdp(min_size=8).plan(shapes, mesh)
        >>> init = init_sharded(lambda key: {"w": jax.random.normal(key, (16, 4))}, shapes, plan, mesh)
        >>> init(jax.random.key(0))["w"].sharding.spec
        P('data', None)
    """
    # What a tree holds besides arrays (an optimizer's functions) is created anew by each trace of `init`, and JAX takes
    # trees with different functions for different trees: so every state gets the structure of the shapes.
    structure = jax.tree.structure(shapes)
    leaves = _leaves(init, shapes, plan, mesh, instead)
    return lambda *args: jax.tree.unflatten(structure, leaves(*args))


def _leaves(init: Callable[..., Any], shapes: Any, plan: Plan, mesh: Mesh, instead: Instead | None = None) -> Any:
    """Compile the function that returns the leaves of `init`'s result, in order."""
    compiled = functools.partial(
        jax.jit,
        out_shardings=jax.tree.leaves(shardings(plan, shapes, mesh)),
        compiler_options=_memory_first(mesh),
    )
    as_written = compiled(lambda *args: jax.tree.leaves(placed_by_plan(init, *args)))
    if instead is None:
        return as_written
    by_trace: dict[int, tuple[Any, Any]] = {}

    def run(*args: Any) -> Any:
        jaxpr = as_written.trace(*args).jaxpr  # which the call below takes from JAX's cache
        if id(jaxpr) not in by_trace:
            other = instead(jaxpr)
            by_trace[id(jaxpr)] = jaxpr, as_written if other is None else compiled(other)
        return by_trace[id(jaxpr)][1](*args)

    return run


def _memory_first(mesh: Mesh) -> dict[str, str] | None:
    """Return options that make XLA's CPU compiler compute one leaf after another.

    By default it starts all leaves at once, and the temporaries of the random generator are then as large as the state
    (a peak of 2.4 times the state instead of 1.2). Other compilers schedule for memory anyway.
    """
    if mesh.devices.flat[0].platform != "cpu":
        return None
    return {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}


def host_memory() -> int | None:
    """Return the bytes of memory that this machine has; None where the system does not say."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else None


def memory_problems(plan: Plan, mesh: Mesh, fix: str) -> tuple[str, list[Problem]] | None:
    """Say that a plan's state needs more memory than this machine has, and name its largest leaves; None if it fits.

    Only CPU devices are checked, which share the host's memory: XLA aborts the process when an allocation fails there,
    while other devices raise an error of their own.

    Args:
        plan: the plan of the state.
        mesh: the mesh of the plan.
        fix: the edit that makes a leaf smaller.
    """
    devices = mesh.devices.flat
    here = {at for at, device in enumerate(devices) if device.process_index == jax.process_index()}
    memory = host_memory()
    if devices[0].platform != "cpu" or memory is None:
        return None
    sizes = {
        leaf: num_bytes(leaf.local_shape, leaf.dtype) * len(here.intersection(leaf.device_ids)) for leaf in plan.state
    }
    needed = sum(sizes.values())
    if needed <= memory:
        return None
    problems = []
    for leaf in sorted(sizes, key=lambda leaf: -sizes[leaf])[:_MAX_NAMED]:
        what = f"{leaf.dtype}{list(leaf.shape)} needs {format_bytes(sizes[leaf])} on the devices of this machine"
        problems.append(Problem("too large", leaf.path, what, fix))
    return f"the state needs {format_bytes(needed)}, and this machine has {format_bytes(memory)}", problems
