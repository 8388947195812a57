"""Sort candidates by arithmetic, before anything is compiled: those worth compiling and those ruled out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from outlay.core.error_types import LayoutError, MeshError, OutlayError, ProgramError
from outlay.core.quantities import format_bytes
from outlay.devices.mesh_info import MeshInfo
from outlay.devices.mesh_spec import MeshSpec
from outlay.devices.target import Target
from outlay.layout.layout import Layout
from outlay.layout.plan import Plan
from outlay.program.diagnose import check_devices
from outlay.program.modes import check_constraints
from outlay.search.analytic_cost import certain_bytes, expect, split_axes
from outlay.search.candidate import Candidate
from outlay.search.compile_order import Screened
from outlay.search.mesh_shapes import mesh_info
from outlay.search.workload import Workload


@dataclass(frozen=True)
class RuledOut:
    """A candidate that is not compiled, and why."""

    candidate: Candidate
    why: str


def screen(
    candidates: Iterable[Candidate],
    layouts: Mapping[str, Layout],
    workload_of: Callable[[Candidate], Workload],
    target: Target,
) -> tuple[list[Screened], list[RuledOut]]:
    """Return the candidates that may run, fastest first according to arithmetic, and those that cannot.

    Args:
        candidates: all of them.
        layouts: their layouts, by name.
        workload_of: what a candidate computes.
        target: the hardware.
    """
    passed: list[Screened] = []
    ruled_out: list[RuledOut] = []
    seen: dict[object, Candidate] = {}
    for candidate in candidates:
        try:
            work = workload_of(candidate)
            plan = plan_of(work, layouts[candidate.layout], MeshSpec.parse(candidate.mesh), target)
        except Rejected as rejected:
            ruled_out.append(RuledOut(candidate, str(rejected)))
            continue
        except OutlayError as error:  # these options do not make a recipe, or a step
            ruled_out.append(RuledOut(candidate, str(error).partition("\n")[0]))
            continue
        twin = seen.setdefault((candidate.options, _placement(plan)), candidate)
        if twin is candidate:
            passed.append(Screened(candidate, expect(work, plan, target)))
        else:
            ruled_out.append(RuledOut(candidate, f"places everything as {twin.layout} does on {twin.mesh}"))
    return sorted(passed, key=lambda each: each.expected.seconds_per_sample), ruled_out


def _placement(plan: Plan) -> object:
    """Return where everything is, in a form that is equal for plans that differ only in axes of size 1."""
    real = {name: size for name, size in plan.mesh.axes if size > 1}
    leaves = [
        (leaf.path, leaf.stored, tuple(tuple(a for a in axes if a in real) for axes in leaf.dims)) for leaf in plan
    ]
    return tuple(real.items()), tuple(leaves)


class Rejected(Exception):
    """A candidate that the arithmetic rules out; the message says why."""


def plan_of(work: Workload, layout: Layout, mesh: MeshSpec, target: Target) -> Plan:
    """Return the plan of a candidate that may run.

    Raises:
        Rejected: it cannot run: the mesh or the layout does not fit, the batch is not divisible into microbatches, or
            state and batch alone need more memory than a device has.
    """
    try:
        info = mesh_info(mesh, target)
        _check_even(work, layout, info)
        plan = layout.plan(work.state, info, batch=work.batch, intermediates=work.traced.intermediates)
        check_devices(plan)
        check_constraints(work.traced, layout, plan)
    except (MeshError, LayoutError, ProgramError) as error:
        raise Rejected(_in_short(error)) from error
    _check_fits(plan, target)
    return plan


def _in_short(error: OutlayError) -> str:
    """Return the first offender and the number of others; the error itself lists all of them at length."""
    problems = error.problems if isinstance(error, LayoutError) else ()
    if not problems:
        return str(error).partition("\n")[0]
    first, more = problems[0], len(problems) - 1
    return f"{first.kind}: {first.where}: {first.what}" + (f" (and {more} more)" if more else "")


def _check_even(work: Workload, layout: Layout, mesh: MeshInfo) -> None:
    """Refuse microbatches that would leave devices idle, before the values inside the step are checked."""
    if work.microbatches == 1 or not work.num_samples:
        return
    try:
        plan = layout.plan(work.state, mesh, batch=work.batch)
    except LayoutError:  # the whole plan will report it
        return
    axes = split_axes(plan.of_kind("batch"))
    shards = math.prod(mesh.axis_sizes[axis] for axis in axes)
    if work.num_samples % work.microbatches:
        raise Rejected(f"{work.num_samples} samples are not divisible into {work.microbatches} microbatches")
    size = work.num_samples // work.microbatches
    if size % shards:
        over = " x ".join(f"{axis}={mesh.axis_sizes[axis]}" for axis in axes)
        raise Rejected(f"microbatches of {size} samples are not divisible over {over}")


def _check_fits(plan: Plan, target: Target) -> None:
    needed, memory = certain_bytes(plan), target.hardware.memory_bytes
    if needed > memory:
        raise Rejected(f"state and batch alone need {format_bytes(needed)} of {format_bytes(memory)} a device")
