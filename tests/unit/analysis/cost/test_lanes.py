"""What shares the links of a torus, and what has links of its own."""

import pytest

from outlay.analysis.cost.links import collective_seconds, locations_of
from outlay.analysis.cost.price import price
from outlay.analysis.cost.schedule import Event, EventKind, Exchange, Schedule
from outlay.devices.target import Target

TORUS, SLICES, SWITCH = (Target.parse(name) for name in ("tpu-v5p:4x1x1", "tpu-v5p:2x1x1*2", "h100:1x4"))
AHEAD = ((0, 1), (1, 2), (2, 3), (3, 0))
BACK = tuple((target, source) for source, target in AHEAD)
EACH = 2**28


def both_at_once(target, *groups):
    """Start a permutation of each of the groups, and wait for all."""
    exchanges = [
        Exchange("collective-permute", EACH, number, ("data",), 1, True, True) for number in range(len(groups))
    ]
    numbers = range(len(groups))
    kinds: tuple[EventKind, ...] = ("start", "wait")
    events = [Event(kind, f"{kind}.{number}", number) for kind in kinds for number in numbers]
    plan = Schedule(str(target), 4, "main", {"main": tuple(events)}, tuple(exchanges), groups, locations_of(target))
    return price(plan, target)


def alone(target, groups):
    return collective_seconds("collective-permute", EACH, groups, target)


@pytest.mark.parametrize(
    ("target", "groups", "times"),
    [
        (TORUS, (AHEAD, BACK), 1),
        (TORUS, (AHEAD, AHEAD), 2),
        (TORUS, (AHEAD, BACK, AHEAD), 2),
        (TORUS, (((0, 1), (1, 0)), ((0, 1), (1, 0))), 2),  # in both directions each
        (SLICES, (AHEAD, BACK), 2),  # between slices they share the network
        (SWITCH, (AHEAD, BACK), 2),  # a GPU sends both by its own link to the switch
    ],
)
def test_permutations_in_opposite_directions_round_a_torus_share_no_link(target, groups, times):
    estimate = both_at_once(target, *groups)
    assert estimate.parts["communication"] == pytest.approx(times * alone(target, groups[0]), rel=0.01)
    assert sum(one.exposed for one in estimate.transfers) == pytest.approx(estimate.parts["communication"])


def test_a_sum_waits_for_both_directions_and_they_for_it():
    exchanges = (
        Exchange("collective-permute", EACH, 0, ("data",), 1, True, True),
        Exchange("all-reduce", EACH, 2, ("data",), 1, True, False),
        Exchange("collective-permute", EACH, 1, ("data",), 1, True, True),
    )
    kinds: list[tuple[EventKind, int]] = [("start", 0), ("exchange", 1), ("start", 2), ("wait", 2), ("wait", 0)]
    events = tuple(Event(kind, f"{kind}.{number}", number) for kind, number in kinds)
    groups = (AHEAD, BACK, ((0, 1, 2, 3),))
    plan = Schedule(str(TORUS), 4, "main", {"main": events}, exchanges, groups, locations_of(TORUS))
    summed = collective_seconds("all-reduce", EACH, groups[2], TORUS)
    assert price(plan, TORUS).parts["communication"] == pytest.approx(2 * alone(TORUS, AHEAD) + summed, rel=1e-3)
