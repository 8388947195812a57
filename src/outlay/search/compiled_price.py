"""The price of a compiled program on a target, which is what candidates are ranked by."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from outlay.core.error_types import ExplainError
from outlay.core.memory_pool import MEM_FRACTION
from outlay.core.one_line import OneLine
from outlay.core.quantities import format_range
from outlay.devices.target import Target
from outlay.program.program import Program
from outlay.render.report import fields_as_json
from outlay.report.explain.explain import explain
from outlay.report.explain.explanation import Explanation


@dataclass(frozen=True)
class Price(OneLine):
    """One compiled candidate, for one device and one step.

    Attributes:
        seconds: the estimate, by which candidates are ranked; like all other times and traffic it is 0 if the compiler
            ran out of the target's memory and made no program.
        seconds_low: the least time that the estimate gives a step.
        seconds_high: the most.
        parts: what the time consists of, in seconds, as in `Estimate.parts`.
        peak_bytes: the most memory at one time, according to the compiler.
        capacity: the memory of a device.
        fits: whether the program runs in it.
        room: the peak that surely fits, beside what the runtime takes.
        flops: operations of the compiled program.
        bytes_by_axes: bytes sent over each mesh axis, or over several joined by "+".
        seconds_by_axes: the estimated time of that, if nothing overlaps.
        crossing: the axes among them that run between hosts.
        num_findings: the number of findings of `outlay.explain`.
        compile_seconds: how long the compiler took.
        mem_fraction: the share of a GPU's memory that JAX must be told to take for it; None where that which it takes
            by itself suffices.
    """

    seconds: float
    seconds_low: float
    seconds_high: float
    parts: Mapping[str, float]
    peak_bytes: int
    capacity: int
    fits: bool
    room: int
    flops: float
    bytes_by_axes: Mapping[str, int]
    seconds_by_axes: Mapping[str, float]
    crossing: tuple[str, ...]
    num_findings: int
    compile_seconds: float
    mem_fraction: float | None = None

    @property
    def environment(self) -> tuple[str, ...]:
        """What the environment of a run must say, as words before its command."""
        return () if self.mem_fraction is None else (f"{MEM_FRACTION}={self.mem_fraction:.2f}",)

    @property
    def range_in_words(self) -> str:
        """The estimated range of a step's time; empty if the compiler made no program."""
        return format_range(self.seconds_low, self.seconds_high) if self.parts else ""

    def times(self, factor: float) -> Price:
        """Return the price of several steps, to compare steps with different batches; the memory is that of one."""
        return replace(
            self,
            seconds=self.seconds * factor,
            seconds_low=self.seconds_low * factor,
            seconds_high=self.seconds_high * factor,
            parts={name: part * factor for name, part in self.parts.items()},
            flops=self.flops * factor,
            bytes_by_axes={axes: int(sent * factor) for axes, sent in self.bytes_by_axes.items()},
            seconds_by_axes={axes: spent * factor for axes, spent in self.seconds_by_axes.items()},
        )

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return fields_as_json(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Price:
        """Read what `to_dict` returned."""
        return cls(**{**data, "crossing": tuple(data["crossing"])})


def compiled_price(program: Program, target: Target) -> tuple[Price, bool]:
    """Price a program on a target; also return whether it was compiled by an earlier call.

    Args:
        program: the program, on a mesh of the target.
        target: the hardware.

    Raises:
        ExplainError: the compiler says nothing of memory.
    """
    start = time.monotonic()
    explanation = explain(program, target=target, cache=True)
    seconds = time.monotonic() - start
    estimate, memory, sent = explanation.estimate, explanation.memory, explanation.by_axis()
    fits = explanation.fits
    if fits is None:
        raise ExplainError("the compiler says nothing of the memory that the program needs")
    # Without a program the compiler's message is all that tells how much it would need.
    needed = max((finding.cost_bytes for finding in explanation.of_kind("out-of-memory")), default=0)
    price = Price(
        seconds=estimate.seconds if estimate else 0.0,
        seconds_low=estimate.seconds_low if estimate else 0.0,
        seconds_high=estimate.seconds_high if estimate else 0.0,
        parts=dict(estimate.parts) if estimate else {},
        peak_bytes=memory.peak if memory else needed,
        capacity=target.hardware.memory_bytes,
        fits=fits,
        # The runtime's own needs grow with the peak, so only this part of the pool is for it.
        room=memory.pool * memory.peak // memory.needed if memory else target.hardware.memory_bytes,
        flops=estimate.flops if estimate else 0.0,
        bytes_by_axes={axes: total.bytes_per_step for axes, total in sent.items()},
        seconds_by_axes={axes: total.seconds or 0.0 for axes, total in sent.items()},
        crossing=_crossing(explanation),
        num_findings=len(explanation.findings),
        compile_seconds=seconds,
        mem_fraction=memory.fraction if memory else None,
    )
    return price, explanation.from_cache


def _crossing(explanation: Explanation) -> tuple[str, ...]:
    """Return the axes whose collectives run between hosts."""
    return tuple(dict.fromkeys("+".join(one.axes) for one in explanation.collectives if one.crosses_hosts))
