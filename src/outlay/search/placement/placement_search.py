"""Search for a placement: cost the parts, balance them over each number of devices, compare with other ways."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from outlay.analysis.parts.measure_parts import Repeated, median_seconds
from outlay.core.quantities import counted, format_seconds
from outlay.devices.target import Target
from outlay.graph.graph_loop import GraphLoop, count_steps
from outlay.layout.layout import Layout
from outlay.layout.placement import replicate
from outlay.layout.rule import Rule
from outlay.layout.strategies import by_module, by_rows
from outlay.layout.write_layout import write_layout
from outlay.program.make import program
from outlay.program.program import Program
from outlay.search.placement.choice import PlacementChoice, Way
from outlay.search.placement.costs import (
    Costs,
    attached,
    estimated_costs,
    expect_by_rows,
    expect_copies,
    expect_placed,
    measured_costs,
    work_by_device,
)


def choose_placement(
    graph_loop: GraphLoop,
    init: Callable[[Any], Any],
    inputs: Mapping[str, Any],
    target: Target,
    *,
    recipe: str,
    words: Sequence[str] = (),
    by_rows: str = "",
) -> PlacementChoice:
    """Choose how to run a graph on a target: which part goes to which device, or whether one device is best.

    If the target's devices are attached, the parts and the exchange between them are measured, and the best ways are
    run; otherwise everything is estimated.

    Args:
        graph_loop: the graph loop.
        init: creates its state from a PRNG key.
        inputs: an example of its inputs.
        target: the hardware.
        recipe: the recipe as the user named it.
        words: the options that the user gave it.
        by_rows: the recipe's name for its layout that splits rows; empty if it has none.
    """
    start = time.monotonic()
    devices, together = attached(target), None
    if devices:
        costs, times = measured_costs(graph_loop, init, inputs, target, devices)
        together = times.together
    else:
        costs = estimated_costs(graph_loop, init, inputs, target)
    ways = compare(costs, target.num_devices, by_rows or "by-rows")
    if devices:
        ways = measured_ways(ways, graph_loop, init, inputs, devices)
    best = next(way for way in ways if way.placement is not None)
    return PlacementChoice(
        recipe=recipe,
        words=tuple(words),
        target=str(target),
        costs=costs,
        ways=ways,
        together=together,
        by_rows=by_rows,
        toml=_toml(best, recipe, words, target),
        seconds=time.monotonic() - start,
    )


def compare(costs: Costs, num_devices: int, by_rows: str = "by-rows") -> tuple[Way, ...]:
    """Return every way to run a graph on at most some devices, fastest first; of equals, that with fewer devices first.

    Args:
        costs: the costs of its parts.
        num_devices: how many devices there are.
        by_rows: the name for splitting all parts' rows.
    """
    everything = dict.fromkeys(costs.seconds, 0)
    ways = [Way("one device", 1, expect_placed(costs, everything), everything)]
    for num in range(2, num_devices + 1):
        if num <= len(costs.seconds):
            placement = balance(costs, num)
            ways.append(Way("by-module", num, expect_placed(costs, placement), placement))
        if costs.rows:
            ways.append(Way(by_rows, num, expect_by_rows(costs, num)))
    if num_devices > 1:
        ways.append(Way("copies", num_devices, expect_copies(costs, num_devices)))
    return tuple(sorted(ways, key=lambda way: (way.seconds, way.num_devices)))


def _toml(way: Way, recipe: str, words: Sequence[str], target: Target) -> str:
    """Return a placement as a layout file, with its origin at the top."""
    command = " ".join(["outlay choose", recipe, *words, "--target", str(target)])
    devices = f"{counted(way.num_devices, 'device')}"
    what = f"{devices}, about {format_seconds(way.seconds)} a step"
    run = " ".join(["outlay run", recipe, *words, "--layout", "THIS_FILE", "--mode", "placed"])
    return write_layout(layout_of(way), mesh="devices=-1", comment=f"Chosen by {command}\n{what}\n{run}")


Placement = dict[str, int]


def balance(costs: Costs, num_devices: int) -> Placement:
    """Assign a device to each part, so that every device has one.

    First the longest part goes to the device with the least work, then the next (longest processing time first, at most
    4/3 of the best: Graham 1969); then single parts are moved, and pairs exchanged, as long as that makes a step
    shorter, including the exchange between devices.

    Args:
        costs: what the parts cost.
        num_devices: how many devices, at most as many as parts.

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
        # The first parts go to one device each, even if a part takes no time at all.
        device = number if number < num_devices else busy.index(min(busy))
        placement[name] = device
        busy[device] += costs.seconds[name]
    return _in_order(_improved(costs, placement, num_devices))


def _improved(costs: Costs, placement: Placement, num_devices: int) -> Placement:
    best = _rank(costs, placement)
    while True:
        candidate = min(
            ((_rank(costs, other), number, other) for number, other in enumerate(_near(placement, num_devices))),
            default=None,
        )
        if candidate is None or candidate[0] >= best:
            return placement
        best, _, placement = candidate


def _near(placement: Placement, num_devices: int) -> Iterator[Placement]:
    """Yield every placement that is one move or one exchange away and leaves no device empty."""
    for name, device in placement.items():
        if sum(other == device for other in placement.values()) > 1:
            yield from ({**placement, name: to} for to in range(num_devices) if to != device)
    for one, other in itertools.combinations(placement, 2):
        if placement[one] != placement[other]:
            yield {**placement, one: placement[other], other: placement[one]}


def _rank(costs: Costs, placement: Placement) -> tuple[float, float]:
    """Return the time of a step and, since one device sets it, how evenly the others are filled."""
    busy = work_by_device(costs, placement)
    return expect_placed(costs, placement).seconds, sum(work**2 for work in busy.values())


def _in_order(placement: Placement) -> Placement:
    """Renumber the devices in the order in which the parts use them."""
    numbers: dict[int, int] = {}
    return {name: numbers.setdefault(device, len(numbers)) for name, device in placement.items()}


def measured_ways(
    ways: Sequence[Way],
    graph_loop: GraphLoop,
    init: Callable[[Any], Any],
    inputs: Mapping[str, Any],
    devices: Sequence[jax.Device],
) -> tuple[Way, ...]:
    """Run the best way of each kind on the devices, in turns; return all ways again, fastest first.

    Copies are not run: on each device they are as much work as one device.

    Args:
        ways: in the order of their computed times.
        graph_loop: the graph loop.
        init: creates its state from a PRNG key.
        inputs: the inputs of as many steps as one run takes.
        devices: attached devices.
    """
    # Reversed, so that of each kind the fastest is what is left.
    first = {way.layout: way for way in reversed(ways) if way.layout != "copies"}
    runs = {}
    for way in first.values():
        made = _program(way, graph_loop, init, inputs, devices)
        runs[way.layout] = Repeated(made, made.init(jax.random.key(0)), inputs)
    num_steps = count_steps(inputs)
    known = {layout: seconds / num_steps for layout, seconds in median_seconds(runs).items()}
    measured = [dataclasses.replace(w, measured=known[w.layout]) if first.get(w.layout) is w else w for w in ways]
    return tuple(sorted(measured, key=lambda way: (way.measured is None, way.seconds, way.num_devices)))


def _program(way: Way, graph_loop: GraphLoop, init: Any, inputs: Any, devices: Sequence[jax.Device]) -> Program:
    def over(axis: str) -> Mesh:
        return Mesh(np.array(devices[: way.num_devices]), (axis,), axis_types=(AxisType.Auto,))

    if way.placement is None:  # copies are never run
        return program(graph_loop, init, inputs, layout=by_rows("rows"), mesh=over("rows"), mode="manual")
    if way.num_devices == 1:
        whole = Layout([("**", replicate()), ("batch.**", replicate())])
        return program(graph_loop, init, inputs, layout=whole, mesh=over("devices"))
    return program(graph_loop, init, inputs, layout=layout_of(way), mesh=over("devices"), mode="placed")


def layout_of(way: Way) -> Layout:
    """Return the layout of a way that has a placement."""
    assert way.placement is not None
    # A part without state exists only in the cache, and one that nobody reads not even there.
    rules = [dataclasses.replace(rule, optional=True) for rule in by_module(way.placement).rules]
    return Layout([*rules, Rule("batch.**", replicate(), optional=True)])
