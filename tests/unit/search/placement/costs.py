"""Costs to choose by, without any device."""

from dataclasses import replace

from outlay.search.placement.costs import Costs, Read

RING = Costs(
    seconds={"a": 3.0, "b": 2.0, "c": 1.0},
    rows={"a": 5, "b": 4},
    reads=(Read("a", "out", "b", 100), Read("b", "out", "c", 10), Read("c", "out", "a", 1), Read("a", "out", "c", 100)),
    per_group=0.0,
    per_transfer=0.0,
    bandwidth=1e30,
    all_gather={2: 0.25, 3: 0.5},
    num_cores=None,
    is_measured=False,
)


def ring(**changed):
    return replace(RING, **changed)
