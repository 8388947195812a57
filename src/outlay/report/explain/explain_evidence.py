"""The published runs nearest to a step, beside its estimated time: what was measured, and what was predicted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from outlay.analysis.attribution.program_facts import WorkFacts
from outlay.analysis.cost.evidence import PublishedRun, nearest_runs
from outlay.core.quantities import counted, format_seconds
from outlay.devices.target import Target
from outlay.layout.placement import is_optimizer
from outlay.layout.plan import Plan
from outlay.render.page import Block, Column, Line, Row, Section, Table


def evidence_of(plan: Plan, target: Target, work: WorkFacts) -> tuple[PublishedRun, ...]:
    """Return the published runs that are most like a program's step; none if it trains nothing.

    Args:
        plan: where its arrays live.
        target: the hardware.
        work: what a device computes.
    """
    if not any(is_optimizer(leaf.path) for leaf in plan.state):
        return ()
    split = [{axis for axes in leaf.dims for axis in axes} for leaf in plan.state if leaf.is_split]
    of_batch = {axis for leaf in plan.of_kind("batch") for axes in leaf.dims for axis in axes}
    splits = {"parameters" if axes & of_batch else "layers" for axes in split}
    flops, in_fp8 = work.flops or work.flops_compiled, _is_in_fp8(work)
    return tuple(nearest_runs(target.hardware, target.num_devices, flops, splits, in_fp8=in_fp8))


_UNLIKE = 8
"""The factor of work from which a step is said to be unlike the nearest run."""


def evidence_line(runs: Sequence[PublishedRun], work: WorkFacts | None) -> Iterator[Block]:
    """Say in a sentence how near the prices of these runs were, and how unlike the step is."""
    if runs:
        named = ", ".join(f"{run.model} on {run.target} {run.ratio:.2f}" for run in runs)
        nearest = counted(len(runs), "nearest run")
        but = f"{_unlike(runs, work)}{_other_precision(runs, work)}"
        yield Line(f"evidence: predicted over published of the {nearest}: {named}{but}", "dim")


def _unlike(runs: Sequence[PublishedRun], work: WorkFacts | None) -> str:
    own = (work.flops or work.flops_compiled) if work else 0.0
    factor = runs[0].flops / own if own else 1.0
    if 1 / _UNLIKE < factor < _UNLIKE:
        return ""
    times, how = (factor, "as much") if factor > 1 else (1 / factor, "less")
    return f"; but a device computes {float(f'{times:.2g}'):,.0f} times {how} there"


def _other_precision(runs: Sequence[PublishedRun], work: WorkFacts | None) -> str:
    """Say of a step in FP8 that no run beside it is."""
    is_unlike = work and _is_in_fp8(work) and not any(run.is_fp8 for run in runs)
    return "; none of these multiplied in FP8" if is_unlike else ""


def _is_in_fp8(work: WorkFacts) -> bool:
    return bool(work.flops_by_dtype.get("float8"))


def evidence_table(runs: Sequence[PublishedRun]) -> Iterator[Block]:
    """List these runs with what was measured and predicted."""
    if not runs:
        return
    numbers = ("published", "predicted", "ratio", "without its source")
    columns = [Column("run"), Column("target", "code"), Column("layout", "code"), Column("precision")]
    columns += [*(Column(name, "number") for name in numbers), Column("source", "path")]
    rows = [
        Row(
            [
                run.model,
                run.target,
                run.layout,
                run.precision,
                format_seconds(run.published),
                f"{format_seconds(run.predicted)} ({format_seconds(run.low)} to {format_seconds(run.high)})",
                f"{run.ratio:.2f}",
                f"{run.ratio_left_out:.2f}",
                f"{run.source}, {run.date}",
            ],
            style="" if run.low <= run.published <= run.high else "warning",
        )
        for run in runs
    ]
    remark = "nearest published runs; ratios are predicted over published, the last one with constants fitted to others"
    yield Section("evidence", [Table(columns, rows)], remark)
