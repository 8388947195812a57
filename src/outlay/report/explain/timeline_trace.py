"""Write the predicted timeline of a step as a trace for Perfetto or Chrome (`chrome://tracing`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from outlay.analysis.attribution.provenance import Origin
from outlay.analysis.attribution.timeline import executed_origins
from outlay.analysis.cost.lanes import Stretch
from outlay.analysis.cost.price import time_on_lanes
from outlay.core.error_types import ExplainError
from outlay.report.explain.explanation import Explanation

PREDICTED = 1
"""The trace process of the predicted device; measured devices follow."""

_LANES = {"compute": 1, "links": 2, "host": 3, "fetches": 4}
# The unit of time in Chrome's format.
_MICROSECONDS = 1e6


def timeline_trace(explanation: Explanation) -> dict[str, Any]:
    """Trace the predicted step of one device, with tracks for computation, links, and host copies.

    A loop spans the time of all its iterations and shows one iteration inside.

    Args:
        explanation: the explanation of the step.

    Raises:
        ExplainError: the explanation has no target, hence no times; or the program has parts, each with a timeline.
    """
    if explanation.by_parts is not None:
        raise ExplainError("mode placed runs several programs, which have no common timeline\n  fix: --mode auto")
    return {"traceEvents": list(predicted_events(explanation)), "displayTimeUnit": "ms"}


def predicted_events(explanation: Explanation) -> Iterator[dict[str, Any]]:
    """Yield the events of the predicted step, and the names of its tracks.

    Args:
        explanation: the explanation of the step.

    Raises:
        ExplainError: the explanation has no target, hence no times.
    """
    if explanation.schedule is None or explanation.target is None:
        raise ExplainError(
            f"{explanation.name}: without a target there are no times to draw\n  fix: --target h100:1x8, or cpu:8"
        )
    yield from named(
        PREDICTED, f"predicted: {explanation.name} on {explanation.target}", {n: lane for lane, n in _LANES.items()}
    )
    origins = origins_of(explanation)
    yield from _events(time_on_lanes(explanation.schedule).stretches, 0.0, origins)


def named(process: int, name: str, threads: Mapping[int, str]) -> Iterator[dict[str, Any]]:
    """Yield the events that name a process and its tracks, in the order of their numbers."""
    yield {"ph": "M", "pid": process, "name": "process_name", "args": {"name": name}}
    yield {"ph": "M", "pid": process, "name": "process_sort_index", "args": {"sort_index": process}}
    for thread, thread_name in threads.items():
        yield {"ph": "M", "pid": process, "tid": thread, "name": "thread_name", "args": {"name": thread_name}}


def span(process: int, thread: int, name: str, begin: float, seconds: float, args: Mapping[str, Any]) -> dict[str, Any]:
    """Make an event with a begin and a duration in seconds."""
    times = {"ts": round(begin * _MICROSECONDS, 3), "dur": round(seconds * _MICROSECONDS, 3)}
    return {"ph": "X", "pid": process, "tid": thread, "name": name, **times, "args": dict(args)}


def origins_of(explanation: Explanation) -> Mapping[str, Origin]:
    """Map the name of every executed instruction to its origin in the source."""
    return executed_origins(explanation.hlo, explanation.schedule)


def described(name: str, origins: Mapping[str, Origin]) -> dict[str, Any]:
    """Describe an instruction in the arguments of an event."""
    origin = origins.get(name)
    if origin is None:
        return {"instruction": name}
    line = {"line": str(origin.source)} if origin.source else {}
    module = {"module": origin.module} if origin.module else {}
    return {"instruction": name, "operation": origin.primitive, "phase": origin.phase, **module, **line}


def _events(stretches: Sequence[Stretch], begin: float, origins: Mapping[str, Origin]) -> Iterator[dict[str, Any]]:
    for one in stretches:
        at, lane = begin + one.begin, _LANES[one.lane]
        if one.part in ("loop", "branch", "call"):
            yield span(PREDICTED, lane, f"{one.part} {one.name}", at, one.seconds, {"rounds": one.runs})
            yield from _events(one.inside, at, origins)
        else:
            arguments = {**described(one.name, origins), "bound by": one.part, "waited for": one.waited * _MICROSECONDS}
            yield span(PREDICTED, lane, one.name, at, one.seconds, arguments)
