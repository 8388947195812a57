"""The schedule of a step on its page: in the order of execution, and priced anew in the browser for other hardware."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from outlay.analysis.attribution.timeline import executed_origins
from outlay.analysis.cost.estimate import PARTS, Estimate, segments_of_time
from outlay.analysis.cost.schedule import Schedule
from outlay.analysis.hlo.hlo_module import HloModule
from outlay.core.one_line import OneLine
from outlay.core.quantities import format_seconds
from outlay.devices.mesh_info import MeshInfo
from outlay.devices.target import Target
from outlay.render.page import Block, Columns, Details, Line, Section, Segment, colour_of
from outlay.render.pictures import Legend, Roofline, Timeline, WeakScaling, WhatIf
from outlay.report.explain.throughput import Throughput

_BATCH_AXES = ("data", "replica", "batch", "dp", "fsdp")
"""Axes along which hosts are added, in this order; of a mesh without them, the outermost."""


@dataclass(frozen=True)
class PricedStep(OneLine):
    """A step with everything that its drawing needs.

    Attributes:
        schedule: what a device does, in order.
        target: the hardware.
        estimate: the time.
        mesh: the mesh, if it is known.
        throughput: what the time means, if it is known.
        module: the compiled program, for the lines of operations; None leaves their names.
    """

    schedule: Schedule
    target: Target
    estimate: Estimate
    mesh: MeshInfo | None = None
    throughput: Throughput | None = None
    module: HloModule | None = None

    @property
    def axis(self) -> str:
        """The axis along which hosts would be added; empty if the mesh is unknown."""
        sizes = self.mesh.axis_sizes if self.mesh else {}
        names = [name for name, size in sizes.items() if size > 1]
        return next((name for name in _BATCH_AXES if name in names), names[0] if names else "")

    def rows(self) -> dict[str, Any]:
        """Return the rows that the page's scripts price, and what a step is for."""
        from outlay.analysis.cost.price_table import price_table

        through = self.throughput
        step = {
            "units": round(through.per_second * self.estimate.seconds) if through else 0,
            "unit": through.unit if through else "",
            "mfu": through.mfu if through else None,
        }
        return {**price_table(self.schedule, self.target, axis=self.axis, origins=self._origins()), "step": step}

    def _origins(self) -> dict[str, str]:
        """Say of each instruction what it is, with its line."""
        words = {}
        for name, origin in executed_origins(self.module, self.schedule).items():
            line = f" ({origin.source})" if origin.source else ""
            if origin.primitive or origin.source:
                words[name] = origin.in_words(origin.primitive or name) + line
        return words


def timeline_blocks(step: PricedStep) -> Iterator[Block]:
    """Draw a step in the order of execution."""
    estimate = step.estimate
    hidden = f", {format_seconds(estimate.hidden)} of it behind computation" if estimate.hidden else ""
    spent = format_seconds(estimate.parts["communication"] + estimate.hidden)
    remark = f"as scheduled by the compiler; {spent} of communication in all{hidden}"
    drawn = [Timeline(step.rows), Legend(list(_legend(estimate)))]
    yield Section("a step in the order of execution", drawn, remark, medium="html")


def what_if_blocks(step: PricedStep) -> Iterator[Block]:
    """Price the step of the page's timeline for other hardware, in the browser."""
    details = Details("how it is modelled", list(_modelled(step)))
    yield Section("what if", [WhatIf(), details], "the compiled schedule on other hardware", medium="html")
    scaling = Section("weak scaling", [WeakScaling()], "the speed of a device that is left, of that on the fewest")
    roofs = Line("solid: what steps reach; dashed: the data sheet", "dim")
    dots = "a dot for each line of the model" if step.module else "a dot for each operation"
    yield Columns([scaling, Section("roofline", [Roofline(), roofs], dots)], medium="html")


def _legend(estimate: Estimate) -> Iterator[Segment]:
    for part in segments_of_time(estimate.parts):
        if part.name == "communication":
            yield Segment("waiting for communication", 0, "exposed", part.value, f"{part.share:.0%}")
        else:
            name = {"kernels": "attention and kernels", "memory": "bound by memory"}.get(part.name, part.name)
            yield Segment(name, 0, part.colour, part.value, f"{part.share:.0%}")
    yield Segment("on the links", 0, colour_of(PARTS.index("communication")))


def _modelled(step: PricedStep) -> Iterator[str]:
    island = step.target.island
    yield "The program stays as compiled: order, overlap and kernels. A compiler for that hardware may choose others."
    yield "Speeds of links, network and memory change bandwidths; latencies and the shares that are reached stay."
    yield "The clock changes the speed of products and kernels; its power is a rule of thumb, the cube of the clock."
    along = f"along the axis {step.axis}" if step.axis else "for collectives of all devices"
    yield (
        f"More {island}s are added {along}, each with the same batch: those collectives have so many more devices, and "
        "the algorithm follows (one ring through all hosts, or inside a slice and then between slices). What each "
        f"device computes stays, also the update of parameters that more {island}s would split further."
    )
