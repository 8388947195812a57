"""The schedule of a step on its page: in the order of execution, and priced anew in the browser for other hardware."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from outlay.analysis.cost.estimate import Estimate, segments_of_time
from outlay.core.quantities import format_seconds
from outlay.render.page import Block, Columns, Details, Line, Section, Segment
from outlay.render.pictures import Legend, Roofline, Timeline, WeakScaling, WhatIf

if TYPE_CHECKING:
    from outlay.report.explain.explanation import Explanation

_BATCH_AXES = ("data", "replica", "batch", "dp", "fsdp")
"""Axes along which hosts are added, in this order; of a mesh without them, the outermost."""


def timeline_blocks(facts: Explanation) -> Iterator[Block]:
    """Draw the step in the order of execution; nothing without times."""
    estimate = facts.estimate
    if estimate is None or facts.schedule is None or not estimate.seconds:
        return
    hidden = f", {format_seconds(estimate.hidden)} of it behind computation" if estimate.hidden else ""
    spent = format_seconds(estimate.parts["communication"] + estimate.hidden)
    remark = f"as scheduled by the compiler; {spent} of communication in all{hidden}"
    drawn = [Timeline(functools.partial(step_rows, facts)), Legend(list(_legend(estimate)))]
    yield Section("a step in the order of execution", drawn, remark, medium="html")


def what_if_blocks(facts: Explanation) -> Iterator[Block]:
    """Price the step of the timeline for other hardware, in the browser; nothing without a timeline."""
    if not any(True for _ in timeline_blocks(facts)):
        return
    details = Details("how it is modelled", list(_modelled(facts)))
    yield Section("what if", [WhatIf(), details], "the compiled schedule on other hardware", medium="html")
    scaling = Section("weak scaling", [WeakScaling()], "the speed of a device that is left, of that on the fewest")
    roofs = Line("solid: what steps reach; dashed: the data sheet", "dim")
    yield Columns([scaling, Section("roofline", [Roofline(), roofs], "a dot for each line")], medium="html")


def _legend(estimate: Estimate) -> Iterator[Segment]:
    for part in segments_of_time(estimate.parts):
        name = {"kernels": "attention and kernels", "memory": "bound by memory"}.get(part.name, part.name)
        name = "waiting for communication" if part.name == "communication" else name
        colour = "exposed" if part.name == "communication" else part.colour
        yield Segment(name, 0, colour, part.value, f"{part.share:.0%}")
    yield Segment("on the links", 0, "s3")


def _modelled(facts: Explanation) -> Iterator[str]:
    axis, island = _axis(facts), facts.target.island if facts.target else "host"
    yield "The program stays as compiled: order, overlap and kernels. A compiler for that hardware may choose others."
    yield "Speeds of links, network and memory change bandwidths; latencies and the shares that are reached stay."
    yield "The clock changes the speed of products and kernels; its power is a rule of thumb, the cube of the clock."
    along = f"along the axis {axis}" if axis else "for collectives of all devices"
    yield (
        f"More {island}s are added {along}, each with the same batch: those collectives have so many more devices, and "
        "the algorithm follows (one ring through all hosts, or inside a slice and then between slices). What each "
        f"device computes stays, also the update of parameters that more {island}s would split further."
    )


def step_rows(facts: Explanation) -> dict[str, Any]:
    """Return the rows that the page's scripts price, and what a step is for.

    Args:
        facts: the explanation; it has a schedule, a target and an estimate.
    """
    from outlay.analysis.cost.price_table import price_table

    assert facts.schedule is not None and facts.target is not None and facts.estimate is not None
    through = facts.throughput
    step = {
        "units": round(through.per_second * facts.estimate.seconds) if through else 0,
        "unit": through.unit if through else "",
        "mfu": through.mfu if through else None,
    }
    return {**price_table(facts.schedule, facts.target, axis=_axis(facts), origins=_origins(facts)), "step": step}


def _axis(facts: Explanation) -> str:
    sizes = facts.mesh.axis_sizes if facts.mesh else {}
    names = [name for name, size in sizes.items() if size > 1]
    return next((name for name in _BATCH_AXES if name in names), names[0] if names else "")


def _origins(facts: Explanation) -> dict[str, str]:
    """Say of each instruction what it is, with its line."""
    from outlay.report.explain.timeline_trace import origins_of

    words = {}
    for name, origin in origins_of(facts).items():
        line = f" ({origin.source})" if origin.source else ""
        if origin.primitive or origin.source:
            words[name] = origin.in_words(origin.primitive or name) + line
    return words
