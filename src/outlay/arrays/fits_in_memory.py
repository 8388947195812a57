"""Whether a state can be at all in the memory of this machine: asked before any of it is made."""

from __future__ import annotations

import os

import jax
from jax.sharding import Mesh

from outlay.core.error_types import Problem
from outlay.core.quantities import format_bytes
from outlay.core.sizes import num_bytes
from outlay.layout.plan import Plan

_SHOWN = 4


def too_large(plan: Plan, mesh: Mesh, fix: str) -> tuple[str, list[Problem]] | None:
    """That the state of a plan needs more than the memory of this machine, with its largest leaves; else None.

    Only devices that share the host's memory are asked: XLA aborts the process where it cannot have as much of it,
    while others say that theirs is not enough.

    Args:
        plan: where the leaves are.
        mesh: its mesh.
        fix: the edit that makes a leaf smaller.
    """
    devices = mesh.devices.flat
    here = {at for at, device in enumerate(devices) if device.process_index == jax.process_index()}
    if devices[0].platform != "cpu" or not hasattr(os, "sysconf"):
        return None
    sizes = {
        leaf: num_bytes(leaf.local_shape, leaf.dtype) * len(here.intersection(leaf.device_ids)) for leaf in plan.state
    }
    memory, needed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), sum(sizes.values())
    if needed <= memory:
        return None
    largest = sorted(sizes, key=lambda leaf: -sizes[leaf])[:_SHOWN]
    problems = [
        Problem(
            "too large",
            leaf.path,
            f"{leaf.dtype}{list(leaf.shape)} needs {format_bytes(sizes[leaf])} on the devices of this machine",
            fix,
        )
        for leaf in largest
    ]
    return f"the state needs {format_bytes(needed)}, and this machine has {format_bytes(memory)}", problems
