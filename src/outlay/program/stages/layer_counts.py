"""How many layers each place of a pipeline has: the same number, the user's, or by what the parts of a loss cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from outlay.core.error_types import Problem
from outlay.core.traced_flops import count_flops
from outlay.layout.pipelines import Pipeline
from outlay.program.stages.stage_functions import StageFunctions
from outlay.schedules.layer_cut import Prices, balanced_cut
from outlay.schedules.stage_schedule import StageSchedule


def layer_counts(
    rule: Pipeline, num_layers: int, schedule: StageSchedule, prices: Callable[[], Prices]
) -> tuple[int, ...]:
    """Return how many layers each place has, for a rule without problems."""
    places = schedule.num_stages * schedule.num_repeats
    if isinstance(rule.cut, tuple):
        return rule.cut
    if rule.cut == "equal" or num_layers == places:
        return (num_layers // places,) * places
    return balanced_cut(num_layers, schedule.num_stages, schedule.num_repeats, prices())


def problems_of_counts(rule: Pipeline, num_layers: int, schedule: StageSchedule, at: str) -> Iterator[Problem]:
    """Yield why these layers cannot be cut so.

    Args:
        rule: the pipeline.
        num_layers: the layers of the scan.
        schedule: how many stages and repeats there are.
        at: the line of the scan.
    """
    stages, repeats = schedule.num_stages, schedule.num_repeats
    places = stages * repeats
    rounds = f" x {repeats} repeats" if repeats > 1 else ""
    if isinstance(rule.cut, tuple):
        cut = " + ".join(map(str, rule.cut))
        if len(rule.cut) != places or sum(rule.cut) != num_layers:
            what = f"cut {cut} is {sum(rule.cut)} layers in {len(rule.cut)} groups, and here are {num_layers} layers "
            what += f"and {places} groups ({stages} stages{rounds})"
            yield Problem("another cut", at, what, 'cut="balanced", or as many numbers as groups, with that sum')
    elif rule.cut == "equal" and num_layers % places:
        up = math.ceil(num_layers / places) * places
        fix = f'cut="balanced" in mode placed, {up} layers, or a number of stages that divides {num_layers}'
        yield Problem("uneven layers", at, f"{num_layers} layers do not divide into {stages} stages{rounds}", fix)
    elif num_layers < places:
        what = f"{num_layers} layers are fewer than {places} groups ({stages} stages{rounds})"
        yield Problem("too few layers", at, what, "fewer stages, or fewer repeats")


def prices_of(functions: Sequence[StageFunctions]) -> Prices:
    """Return the FLOPs of the parts of a loss, forward and backward, of places of one layer: first, middle and last."""
    first, middle, last = (sum(flops_of(each)) for each in functions)
    return max(0.0, first - middle), middle, max(0.0, last - middle)


def flops_of(function: StageFunctions) -> tuple[float, float]:
    """Return the FLOPs of the forward and of the backward pass of a place, for one microbatch."""
    return count_flops(function.forward), count_flops(function.backward)
