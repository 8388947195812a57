"""A step in time, on its lanes, as a few stretches to draw."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from outlay.analysis.attribution.program_facts import CollectiveFacts, Segment
from outlay.analysis.cost.lanes import Laid, Stretch

_COMPUTE = "compute"
_SEEN = 2e-5
"""Seconds from which on a pause is shown; what passes between two operations is less."""


def timeline(laid: Laid, collectives: Sequence[CollectiveFacts]) -> tuple[Segment, ...]:
    """The stretches of a step, those that compute one after the other joined.

    Args:
        laid: the step, laid out in time.
        collectives: its collectives, for their kinds.
    """
    kinds = {one.name: one.kind for one in collectives}
    merged: list[Segment] = []
    of_lane: dict[str, int] = {}
    for segment in _segments(laid.stretches, 0.0, 1.0, 1, "", kinds):
        at = of_lane.get(segment.lane, -1)
        last = merged[at] if at >= 0 else None
        joined = last is not None and last.kind == segment.kind == _COMPUTE and last.loop == segment.loop
        if last is not None and joined and segment.begin - last.begin - last.seconds < _SEEN * last.count:
            merged[at] = Segment(
                last.lane,
                _COMPUTE,
                "",
                last.begin,
                segment.begin + segment.seconds - last.begin,
                last.waited + segment.waited,
                last.count,
                last.loop,
            )
        else:
            of_lane[segment.lane] = len(merged)
            merged.append(segment)
    return tuple(merged)


def _segments(
    stretches: Sequence[Stretch], begin: float, scale: float, count: int, loop: str, kinds: dict[str, str]
) -> Iterator[Segment]:
    for one in stretches:
        at = begin + scale * one.begin
        if one.part in ("loop", "branch", "call"):
            is_loop = one.part == "loop"
            inner = scale * one.runs if is_loop else scale
            yield from _segments(one.inside, at, inner, count * one.runs, one.name if is_loop else loop, kinds)
        else:
            if one.lane == "fetches":  # what is waited for of it is part of the computation
                continue
            kind = kinds.get(one.name, one.part) if one.lane == "links" else "host" if one.lane == "host" else _COMPUTE
            name = "" if kind == _COMPUTE else one.name
            yield Segment(one.lane, kind, name, at, scale * one.seconds, scale * one.waited, count, loop)
