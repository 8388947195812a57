"""Cut equal layers into stages whose first and last one have other work besides."""

from __future__ import annotations

from collections.abc import Sequence

Prices = tuple[float, float, float]
"""What comes before the layers, one layer, and what comes after them: in any unit of time."""


def balanced_cut(num_layers: int, num_stages: int, num_repeats: int, prices: Prices) -> tuple[int, ...]:
    """Return how many layers each place has, so that the slowest stage takes the least time.

    Place `repeat * num_stages + stage` is a group of layers of a stage. The first place has what comes before the
    layers besides, the last what comes after. Each has a layer or more. Where equal places are as good, they are equal.

    Args:
        num_layers: layers of the same price, as many as places or more.
        num_stages: groups of devices.
        num_repeats: places of a stage.
        prices: what the parts take.

    >>> balanced_cut(16, 4, 1, (0.0, 1.0, 2.0))
    (5, 5, 4, 2)
    >>> balanced_cut(16, 4, 1, (0.1, 1.0, 0.1))
    (4, 4, 4, 4)
    """
    places = num_stages * num_repeats
    counts = [1] * places
    for _ in range(num_layers - places):
        times, of_stages = place_times(counts, prices), stage_times(counts, num_stages, prices)
        # Layers are alike, so the next one always belongs to the stage that is ready first.
        counts[min(range(places), key=lambda place: (of_stages[place % num_stages], times[place], place))] += 1
    if num_layers % places == 0:
        equal = [num_layers // places] * places
        if max(stage_times(equal, num_stages, prices)) <= max(stage_times(counts, num_stages, prices)):
            return tuple(equal)
    return tuple(counts)


def place_times(counts: Sequence[int], prices: Prices) -> list[float]:
    """Return what each place takes.

    >>> place_times((2, 1), (0.5, 1.0, 2.0))
    [2.5, 3.0]
    """
    before, layer, after = prices
    times = [count * layer for count in counts]
    times[0] += before
    times[-1] += after
    return times


def stage_times(counts: Sequence[int], num_stages: int, prices: Prices) -> list[float]:
    """Return what each stage takes, all its places together.

    >>> stage_times((2, 1, 1, 1), 2, (0.5, 1.0, 2.0))
    [3.5, 4.0]
    """
    times = place_times(counts, prices)
    return [sum(times[stage::num_stages]) for stage in range(num_stages)]
