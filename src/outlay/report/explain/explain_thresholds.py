"""From how many tokens on computing hides the exchanges over each mesh axis, as a line for each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from outlay.analysis.attribution.program_facts import CollectiveFacts
from outlay.analysis.cost.estimate import Estimate
from outlay.analysis.cost.thresholds import Exchange, Threshold, thresholds
from outlay.render.page import Block, Line
from outlay.report.explain.throughput import Throughput


def thresholds_of(
    collectives: Sequence[CollectiveFacts], estimate: Estimate | None, throughput: Throughput | None
) -> tuple[Threshold, ...]:
    """Return the threshold of each axis; none without a target, or for what is not a program's step.

    Args:
        collectives: the collectives of the step.
        estimate: its time.
        throughput: what a device takes a second.
    """
    if estimate is None or throughput is None:
        return ()
    exchanges = [
        Exchange("+".join(one.axes), (one.seconds or 0.0) * one.count, _is_of_state(one)) for one in collectives
    ]
    return thresholds(exchanges, estimate.parts, throughput.per_device * estimate.seconds)


def threshold_lines(
    collectives: Sequence[CollectiveFacts], estimate: Estimate | None, throughput: Throughput | None
) -> Iterator[Block]:
    """Lay them out, each as a line; for the arguments see `thresholds_of`."""
    for one in thresholds_of(collectives, estimate, throughput):
        assert throughput is not None
        yield Line(one.in_words(throughput.unit))


def _is_of_state(one: CollectiveFacts) -> bool | None:
    """Return whether parameters or their gradients are moved; None if it may be either.

    A computed value of the forward pass is one of activations. One of the backward pass is of activations too, or a
    gradient that was not followed to its parameter.
    """
    if one.gradients or any(not leaf.startswith("batch") for leaf in one.leaves):
        return True
    return False if one.leaves or one.phase == "forward" else None
