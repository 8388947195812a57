"""Check what mode placed can run of a pipeline, and choose its schedule."""

from __future__ import annotations

from collections.abc import Mapping

import jax
from jax.sharding import Mesh

from outlay.core.error_types import Problem, ProgramError
from outlay.core.suggest import did_you_mean
from outlay.layout.layout import Layout
from outlay.layout.pipelines import Pipeline
from outlay.program.passes import Planned
from outlay.schedules.known_schedules import KNOWN
from outlay.schedules.stage_schedule import StageSchedule

_REFUSED = {
    "by_source": "names values by their source line",
    "split_attention": "splits the tokens of attention",
    "rematerialization": "says how values inside of the step are stored",
    "host_state:fetch": "keeps leaves of the state on the host",
}
"""Passes that stages do not have, and what a rule of the layout does that asks for them."""


def check_mesh(mesh: Mesh, layout: Layout) -> None:
    """Raise for meshes whose stages cannot be programs of their own."""
    axes = dict.fromkeys(axis for axis in layout.stage_axes if axis in mesh.shape)
    if all(mesh.shape[axis] == 1 for axis in axes) and axes:
        raise ProgramError(
            f"mode placed has each stage on devices of its own, and the mesh has {next(iter(axes))}=1"
            '\n  fix: two stages or more, or mode="auto"'
        )
    processes = {device.process_index for device in mesh.devices.flat}
    if len(processes) > 1 and jax.process_count() == 1:
        raise ProgramError(
            "in mode placed each process runs the stages of its own devices, and this mesh of "
            f"{len(processes)} hosts is compile-only"
            '\n  fix: mode="auto", in which a pipeline is one program, or a mesh of one host'
        )


def check_step(planned: Planned, step: str) -> None:
    """Raise for steps and rules that stages cannot run; all are listed."""
    if not planned.traced.sums_over_batch:
        raise ProgramError(
            f"{step} does not say which gradients it takes, and stages of mode placed compute them apart from the rest"
            '\n  fix: make it with outlay.train_step(loss, optimizer), or mode="auto"'
        )
    problems = [
        Problem("not in stages", what, "a program of a stage has no such pass", 'mode="auto", or leave the rule out')
        for name, what in _REFUSED.items()
        if name in planned.passes
    ]
    if planned.has_unlimited_experts:
        what = "tokens go to experts without a limit"
        problems.append(Problem("not in stages", what, "their exchange has no stages", 'capacity=, or mode="auto"'))
    if problems:
        raise ProgramError("mode placed cannot run this pipeline:", problems)


def schedule_for(schedule: StageSchedule | str | None, pipelines: Mapping[str, Pipeline], mesh: Mesh) -> StageSchedule:
    """Return the schedule of a pipeline.

    Args:
        schedule: a schedule, or the name of a known one; None for 1F1B, interleaved where the rule has repeats.
        pipelines: the pipeline of each leaf.
        mesh: the mesh.

    Raises:
        ProgramError: there is no such schedule, or it is for other numbers than the rule and the mesh.
    """
    rules = set(pipelines.values())
    if len(rules) > 1:
        listed = ", ".join(sorted(map(str, rules)))
        raise ProgramError(f"stages of mode placed follow one pipeline rule, and these are {len(rules)}: {listed}")
    (rule,) = rules
    stages = mesh.shape[rule.axis]
    if schedule is None:
        schedule = "interleaved" if rule.repeats > 1 else "1f1b"
    if isinstance(schedule, str):
        return _known(schedule, rule, stages)
    if not isinstance(schedule, StageSchedule):
        raise ProgramError(
            f"schedule={schedule!r:.80}: it is a schedule or the name of one"
            f"\n  fix: one of {', '.join(map(repr, KNOWN))}; or outlay.schedules.in_order(...) for your own"
        )
    own = {
        "stages": (schedule.num_stages, stages, f"{rule.axis}={schedule.num_stages} in the mesh"),
        "microbatches": (
            schedule.num_microbatches,
            rule.microbatches,
            f"microbatches={schedule.num_microbatches} in the rule",
        ),
        "repeats": (schedule.num_repeats, rule.repeats, f"repeats={schedule.num_repeats} in the rule"),
    }
    problems = [
        Problem(
            f"other {what}",
            schedule.name,
            f"the schedule has {has} {what}, the layout {needs}",
            f"{fix}, or another schedule",
        )
        for what, (has, needs, fix) in own.items()
        if has != needs
    ]
    if problems:
        raise ProgramError("the schedule is for another pipeline than the layout has:", problems)
    return schedule


def _known(name: str, rule: Pipeline, stages: int) -> StageSchedule:
    if name not in KNOWN:
        raise ProgramError(
            f"there is no schedule {name!r}: {did_you_mean(name, KNOWN)}\n  fix: one of {', '.join(KNOWN)}"
        )
    make, takes_repeats = KNOWN[name]
    if rule.repeats > 1 and not takes_repeats:
        others = " or ".join(repr(other) for other, (_, takes) in KNOWN.items() if takes)
        raise ProgramError(
            f"the schedule {name!r} goes through the stages once, and the rule has repeats={rule.repeats}"
            f"\n  fix: schedule={others}, or repeats=1"
        )
    return make(stages, rule.microbatches, *([rule.repeats] if takes_repeats else []))
