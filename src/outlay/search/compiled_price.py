"""The price of a program on a target, of what `outlay.explain` says once it is compiled."""

from __future__ import annotations

import time

from outlay.core.error_types import ExplainError
from outlay.devices.target import Target
from outlay.program.program import Program
from outlay.report.explain.explain import explain
from outlay.report.explain.explanation import Explanation
from outlay.search.candidate import Price


def compiled_price(program: Program, target: Target) -> tuple[Price, bool]:
    """The price of a program on a target, and whether an earlier call had it compiled.

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
    needed = max((finding.cost_bytes for finding in explanation.of_kind("out-of-memory")), default=0)
    price = Price(
        seconds=estimate.seconds if estimate else 0.0,
        seconds_low=estimate.seconds_low if estimate else 0.0,
        seconds_high=estimate.seconds_high if estimate else 0.0,
        parts=dict(estimate.parts) if estimate else {},
        peak_bytes=memory.peak if memory else needed,
        capacity=target.hardware.memory_bytes,
        fits=fits,
        room=memory.pool * memory.peak // memory.needed if memory else target.hardware.memory_bytes,
        flops=estimate.flops if estimate else 0.0,
        bytes_by_axes={axes: total.bytes_per_step for axes, total in sent.items()},
        seconds_by_axes={axes: total.seconds or 0.0 for axes, total in sent.items()},
        crossing=_crossing(explanation),
        num_findings=len(explanation.findings),
        compile_seconds=seconds,
    )
    return price, explanation.from_cache


def _crossing(explanation: Explanation) -> tuple[str, ...]:
    """The axes whose collectives run between hosts."""
    return tuple(dict.fromkeys("+".join(one.axes) for one in explanation.collectives if one.crosses_hosts))
