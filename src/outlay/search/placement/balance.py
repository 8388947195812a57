"""A balanced placement: the longest parts first, each to the device with least to do, and then improved by moving."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from outlay.search.placement.costs import Costs, expect_placed

Placement = dict[str, int]


def balance(costs: Costs, num_devices: int) -> Placement:
    """A device for each part, none of the devices without one.

    First the longest part goes to the device that has least to do, then the next (longest processing time first, at
    most 4/3 of the best: Graham 1969); then single parts are moved, and pairs exchanged, as long as that makes a step
    shorter, with what is exchanged between the devices counted.

    Args:
        costs: what the parts cost.
        num_devices: how many devices, at most as many as there are parts.

    Returns:
        The position of each part's device, in the order of the parts.

    >>> costs = Costs({"a": 3.0, "b": 3.0, "c": 2.0, "d": 2.0, "e": 2.0}, {}, (), 0.0, 0.0, 1.0, {}, None, True)
    >>> placement = balance(costs, 2)
    >>> expect_placed(costs, placement).seconds  # the longest first alone would give 7
    6.0
    """
    busy = [0.0] * num_devices
    placement: Placement = dict.fromkeys(costs.seconds, 0)
    waiting = sorted(costs.seconds, key=lambda name: -costs.seconds[name])
    for number, name in enumerate(waiting):
        # The first parts fill the devices one by one, also where a part takes no time at all.
        place = number if number < num_devices else busy.index(min(busy))
        placement[name] = place
        busy[place] += costs.seconds[name]
    return _in_order(_improved(costs, placement, num_devices))


def _improved(costs: Costs, placement: Placement, num_devices: int) -> Placement:
    best = _rank(costs, placement)
    while True:
        found = min(
            ((_rank(costs, other), number, other) for number, other in enumerate(_near(placement, num_devices))),
            default=None,
        )
        if found is None or found[0] >= best:
            return placement
        best, _, placement = found


def _near(placement: Placement, num_devices: int) -> Iterator[Placement]:
    """Every placement that one move, or one exchange, is away, in which every device still has a part."""
    for name, place in placement.items():
        if sum(other == place for other in placement.values()) > 1:
            yield from ({**placement, name: to} for to in range(num_devices) if to != place)
    for one, other in itertools.combinations(placement, 2):
        if placement[one] != placement[other]:
            yield {**placement, one: placement[other], other: placement[one]}


def _rank(costs: Costs, placement: Placement) -> tuple[float, float]:
    """The time of a step; and where one device sets it, how evenly the others are filled."""
    busy: dict[int, float] = {}
    for name, place in placement.items():
        busy[place] = busy.get(place, 0.0) + costs.seconds[name]
    return expect_placed(costs, placement).seconds, sum(work**2 for work in busy.values())


def _in_order(placement: Placement) -> Placement:
    """The same with devices numbered as the parts come."""
    numbers: dict[int, int] = {}
    return {name: numbers.setdefault(place, len(numbers)) for name, place in placement.items()}
