"""What step was priced, and what its time means: tokens a second, the share of the hardware that is used, device hours.

And from how many tokens on computing hides the exchanges over each mesh axis.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from outlay.analysis.attribution.leaves import LayoutFacts, batch_dims
from outlay.analysis.attribution.program_facts import CollectiveFacts, RecomputedFacts, WorkFacts
from outlay.analysis.cost.constants import product_speed
from outlay.analysis.cost.estimate import Estimate
from outlay.analysis.cost.thresholds import Exchange, Threshold, thresholds
from outlay.core.one_line import OneLine
from outlay.core.quantities import counted
from outlay.devices.target import Target
from outlay.layout.plan import Plan
from outlay.render.page import Block, Line

_BILLION = 1e9


@dataclass(frozen=True)
class Throughput(OneLine):
    """The throughput of a program on a target, estimated.

    Attributes:
        unit: `tokens` if the batch has a leaf of that name, else `samples`.
        per_second: how many of them all devices take a second.
        per_device: how many one device does.
        mfu: the share of the products' peak that is for the model: without what is computed again; None if unknown.
        hfu: the share that is for all that is computed; None if unknown.
        dtype: the dtype of the products whose peak it is.
        hours_per_billion: device hours for a billion of them.
        price_per_billion: what these hours cost, such as `1,234 USD`; empty if the target has no price.
    """

    unit: str
    per_second: float
    per_device: float
    mfu: float | None
    hfu: float | None
    dtype: str
    hours_per_billion: float
    price_per_billion: str = ""


def throughput_of(
    plan: Plan, estimate: Estimate, target: Target, work: WorkFacts, recomputed: Sequence[RecomputedFacts]
) -> Throughput | None:
    """Return the throughput of a program; None if its batch does not say how many samples it has.

    Args:
        plan: where its batch lives.
        estimate: the time of its step.
        target: the hardware.
        work: what a device computes.
        recomputed: the products that are computed again.
    """
    dims = batch_dims(plan)
    num = math.prod(dims) if dims else 0
    if not num or not estimate.seconds:
        return None
    each, again = num / estimate.seconds, sum(one.flops_per_step for one in recomputed)
    dtype = max(work.flops_by_dtype, key=lambda name: work.flops_by_dtype[name], default="")
    is_known = bool(dtype) and target.hardware.kind != "cpu"
    peak = product_speed(target.hardware, dtype)[0] * estimate.seconds if is_known else 0.0
    hours = estimate.seconds * target.num_devices / 3600 * _BILLION / num
    own = min(work.flops or work.flops_compiled, work.flops_compiled - again)
    return Throughput(
        "tokens" if len(dims) > 1 else "samples",
        each,
        each / target.num_devices,
        own / peak if peak else None,
        work.flops_compiled / peak if peak else None,
        dtype,
        hours,
        _price(hours, target.hardware.price_per_hour),
    )


def _price(hours: float, per_hour: str) -> str:
    if not per_hour:
        return ""
    amount, currency = per_hour.split()
    return f"{_in_digits(hours * float(amount))} {currency}"


def _in_digits(value: float) -> str:
    """Write four digits that count, and never a power of ten.

    >>> _in_digits(3357123.4), _in_digits(29.0265), _in_digits(0.66249)
    ('3,357,000', '29.03', '0.6625')
    """
    rounded = float(f"{value:.4g}")
    return f"{rounded:,.0f}" if rounded >= 1000 else f"{rounded:.4g}"


def priced_line(
    layout: LayoutFacts, work: WorkFacts | None, recomputed: Sequence[RecomputedFacts], versions: str
) -> Iterator[Block]:
    """Say in a sentence what step was priced: its model, batch and layout, what it computes again, and the versions."""
    words = [f"{layout.num_parameters:,} parameters"] if layout.num_parameters else []
    if layout.batch:
        samples, *tokens = layout.batch
        size = (
            f"{counted(samples, 'sequence')} of {counted(tokens[0], 'token')}" if tokens else counted(samples, "sample")
        )
        words.append(f"{size} a step")
    words.append(f"layout {' + '.join(layout.names)}")
    again = sum(one.flops_per_step for one in recomputed)
    share = again / work.flops_compiled if work and work.flops_compiled else 0.0
    words.append(f"{share:.0%} of the products computed again" if again else "no product computed again")
    yield Line(f"priced: {', '.join(words)} ({versions})")


def throughput_line(facts: Throughput | None) -> Iterator[Block]:
    """Lay it out as a sentence."""
    if facts is None:
        return
    words = [f"{_in_digits(facts.per_second)} {facts.unit}/s, {_in_digits(facts.per_device)} a device"]
    if facts.mfu is not None and facts.hfu is not None:
        words.append(f"MFU {facts.mfu:.0%}, HFU {facts.hfu:.0%} of {facts.dtype}")
    price = f" ({facts.price_per_billion})" if facts.price_per_billion else ""
    words.append(f"{_in_digits(facts.hours_per_billion)} device hours{price} for a billion {facts.unit}")
    yield Line("; ".join(words))


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
    """Lay thresholds out, each as a line; for the arguments see `thresholds_of`."""
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
