"""Price one program: what it needs and how long it takes on its target, compiled once and then kept."""

from __future__ import annotations

import os
import time

import jax
import jaxlib

from outlay.core.error_types import ExplainError
from outlay.core.runtime_flags import versions
from outlay.devices.target import Target
from outlay.program.program import Program
from outlay.report.explain.explain import explain
from outlay.report.explain.explanation import Explanation
from outlay.search.cache import Cache, cache_key
from outlay.search.candidate_price import Price


def price(program: Program, target: Target, cache: Cache) -> tuple[Price, bool]:
    """The price of a program on a target, and whether it was kept from an earlier time.

    Args:
        program: the program, on a mesh of the target.
        target: the hardware.
        cache: where prices are kept.
    """
    # Tracing and lowering take seconds and are always done: their result is what says whether anything has changed.
    depends = (
        target,
        target.hardware,
        program.plan.mesh,
        jax.__version__,
        jaxlib.__version__,
        versions(("libtpu", "jax-cuda13-pjrt")),
        program.compiler_options,
        sorted(program.compiler_options.values.items()),
        *(os.environ.get(variable, "") for variable in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")),
    )
    key = cache_key(program.lowered.as_text(), depends)
    kept = cache.load(key)
    if kept is not None:
        return kept, True
    found = _compiled_price(program, target)
    cache.store(key, found)
    return found, False


def _compiled_price(program: Program, target: Target) -> Price:
    start = time.monotonic()
    explanation = explain(program, target=target)
    seconds = time.monotonic() - start
    estimate, memory, sent = explanation.estimate, explanation.memory, explanation.by_axis()
    fits = explanation.fits
    if fits is None:
        raise ExplainError("the compiler says nothing of the memory that the program needs")
    needed = max((finding.cost_bytes for finding in explanation.of_kind("out-of-memory")), default=0)
    return Price(
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


def _crossing(explanation: Explanation) -> tuple[str, ...]:
    """The axes whose collectives run between hosts."""
    return tuple(dict.fromkeys("+".join(one.axes) for one in explanation.collectives if one.crosses_hosts))
