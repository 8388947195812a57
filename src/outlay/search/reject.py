"""Reasons against a candidate that need no compiler: what cannot be placed, cannot be divided, cannot fit."""

from __future__ import annotations

import math

from outlay.core.errors import LayoutError, MeshError, OutlayError, ProgramError
from outlay.core.sizes import format_bytes
from outlay.execute.diagnose import refuse_unplaceable
from outlay.execute.intermediates import refuse_unplaceable_values
from outlay.layout.layout import Layout
from outlay.layout.plan import Plan
from outlay.meshes.info import MeshInfo
from outlay.meshes.spec import MeshSpec
from outlay.meshes.target import Target
from outlay.search.expect import certain_bytes, split_axes
from outlay.search.mesh_shapes import mesh_info
from outlay.search.workload import Workload


class Rejected(Exception):
    """A candidate that the arithmetic rules out; the message says why."""


def plan_of(work: Workload, layout: Layout, mesh: MeshSpec, target: Target) -> Plan:
    """The plan of a candidate that could run.

    Raises:
        Rejected: it could not: the mesh or the layout does not fit, the microbatches do not divide, or state and batch
            alone are more than a device has.
    """
    try:
        info = mesh_info(mesh, target)
        _refuse_uneven(work, layout, info)
        plan = layout.plan(work.state, info, batch=work.batch, intermediates=work.traced.intermediates)
        refuse_unplaceable(plan)
        refuse_unplaceable_values(work.traced, layout, plan)
    except (MeshError, LayoutError, ProgramError) as error:
        raise Rejected(_in_short(error)) from error
    _refuse_too_big(plan, target)
    return plan


def _in_short(error: OutlayError) -> str:
    """The first offender and how many there are; an error lists them all, at length."""
    problems = error.problems if isinstance(error, LayoutError) else ()
    if not problems:
        return str(error).partition("\n")[0]
    first, more = problems[0], len(problems) - 1
    return f"{first.kind}: {first.where}: {first.what}" + (f" (and {more} more)" if more else "")


def _refuse_uneven(work: Workload, layout: Layout, mesh: MeshInfo) -> None:
    """Microbatches that some devices would have no part in; said before what becomes of the values inside the step."""
    if work.microbatches == 1 or not work.num_samples:
        return
    try:
        plan = layout.plan(work.state, mesh, batch=work.batch)
    except LayoutError:  # the whole plan will say it
        return
    axes = split_axes(plan.of_kind("batch"))
    shards = math.prod(mesh.axis_sizes[axis] for axis in axes)
    if work.num_samples % work.microbatches:
        raise Rejected(f"{work.num_samples} samples do not divide into {work.microbatches} microbatches")
    size = work.num_samples // work.microbatches
    if size % shards:
        over = " x ".join(f"{axis}={mesh.axis_sizes[axis]}" for axis in axes)
        raise Rejected(f"microbatches of {size} samples do not divide over {over}")


def _refuse_too_big(plan: Plan, target: Target) -> None:
    needed, memory = certain_bytes(plan), target.hardware.memory_bytes
    if needed > memory:
        raise Rejected(f"state and batch alone need {format_bytes(needed)} of {format_bytes(memory)} a device")
