"""The search for a placement: cost the parts, balance them over each number of devices, compare with the other ways."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from outlay.execute.rollout import Rollout
from outlay.layout.toml_write import write_layout
from outlay.meshes.target import Target
from outlay.report.estimate.render import format_seconds
from outlay.search.placement.balance import balance
from outlay.search.placement.choice import PlacementChoice, Way
from outlay.search.placement.costs import Costs, expect_by_rows, expect_copies, expect_placed
from outlay.search.placement.find_costs import attached, estimated_costs, measured_costs
from outlay.search.placement.layout import layout_of
from outlay.search.placement.measure_ways import measured_ways


def choose_placement(
    rollout: Rollout,
    init: Callable[[Any], Any],
    inputs: Mapping[str, Any],
    target: Target,
    *,
    recipe: str,
    words: Sequence[str] = (),
) -> PlacementChoice:
    """Choose how to run a graph on a target: which parts go to which of its devices, or whether one device is best.

    Where the target's devices are attached, the parts and the exchange between them are measured, and the best ways by
    these times are run; elsewhere everything is estimated.

    Args:
        rollout: the graph's rollout.
        init: what makes its state from a PRNG key.
        inputs: an example of its inputs.
        target: the hardware.
        recipe: what the user calls it.
        words: the options that the user gave it.
    """
    start = time.monotonic()
    devices, together = attached(target), None
    if devices:
        costs, times = measured_costs(rollout, init, inputs, target, devices)
        together = times.together
    else:
        costs = estimated_costs(rollout, init, inputs, target)
    ways = compare(costs, target.num_devices)
    if devices:
        ways = measured_ways(ways, rollout, init, inputs, devices)
    best = next(way for way in ways if way.placement is not None)
    return PlacementChoice(
        recipe=recipe,
        words=tuple(words),
        target=str(target),
        costs=costs,
        ways=ways,
        together=together,
        toml=_toml(best, recipe, words, target),
        seconds=time.monotonic() - start,
    )


def compare(costs: Costs, num_devices: int) -> tuple[Way, ...]:
    """Every way to run a graph on up to so many devices, the fastest first; of equals that with fewer devices.

    Args:
        costs: what its parts cost.
        num_devices: how many devices there are.
    """
    everything = dict.fromkeys(costs.seconds, 0)
    ways = [Way("one device", 1, expect_placed(costs, everything), everything)]
    for num in range(2, num_devices + 1):
        if num <= len(costs.seconds):
            placement = balance(costs, num)
            ways.append(Way("by-module", num, expect_placed(costs, placement), placement))
        if costs.rows:
            ways.append(Way("by-neuron", num, expect_by_rows(costs, num)))
    if num_devices > 1:
        ways.append(Way("copies", num_devices, expect_copies(costs, num_devices)))
    return tuple(sorted(ways, key=lambda way: (way.seconds, way.num_devices)))


def _toml(way: Way, recipe: str, words: Sequence[str], target: Target) -> str:
    """A placement as a layout file, with where it comes from at its top."""
    command = " ".join(["outlay choose", recipe, *words, "--target", str(target)])
    devices = f"{way.num_devices} device{'s' if way.num_devices > 1 else ''}"
    what = f"{devices}, about {format_seconds(way.seconds)} a step"
    run = " ".join(["outlay run", recipe, *words, "--layout", "THIS_FILE", "--mode", "placed"])
    return write_layout(layout_of(way), mesh="devices=-1", comment=f"Chosen by {command}\n{what}\n{run}")
