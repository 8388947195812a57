"""The best ways by the computed times, run: what decides between them where the devices are attached."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from outlay.execute.make import program
from outlay.execute.program import Program
from outlay.execute.rollout import Rollout, count_steps
from outlay.layout.layout import Layout
from outlay.layout.placement import replicate
from outlay.layout.strategies import by_neuron
from outlay.search.placement.choice import Way
from outlay.search.placement.layout import layout_of

_NUM_ROUNDS = 5


def measured_ways(
    ways: Sequence[Way],
    rollout: Rollout,
    init: Callable[[Any], Any],
    inputs: Mapping[str, Any],
    devices: Sequence[jax.Device],
) -> tuple[Way, ...]:
    """The best way of each kind run on the devices, in turns; then all ways anew, the fastest first.

    Copies are not run: they are as much work as one device on each.

    Args:
        ways: in the order of the times that were computed for them.
        rollout: the graph's rollout.
        init: what makes its state from a PRNG key.
        inputs: of as many steps as one run takes.
        devices: attached devices.
    """
    first = {way.layout: way for way in reversed(ways) if way.layout != "copies"}
    runs = {way.layout: _Run(_program(way, rollout, init, inputs, devices), inputs) for way in first.values()}
    took: dict[str, list[float]] = {layout: [] for layout in runs}
    for number in range(_NUM_ROUNDS + 1):
        for layout, run in runs.items():
            seconds = run.seconds()
            if number:  # the first one compiles
                took[layout].append(seconds)
    num_steps = count_steps(inputs)
    known = {layout: statistics.median(times) / num_steps for layout, times in took.items()}
    told = [dataclasses.replace(w, measured=known[w.layout]) if first.get(w.layout) is w else w for w in ways]
    return tuple(sorted(told, key=lambda way: (way.measured is None, way.seconds, way.num_devices)))


class _Run:
    def __init__(self, made: Program, inputs: Mapping[str, Any]) -> None:
        self._program, self._inputs = made, inputs
        self._state = made.init(jax.random.key(0))

    def seconds(self) -> float:
        """The time of all steps once more."""
        start = time.perf_counter()
        self._state, _ = jax.block_until_ready(self._program(self._state, self._inputs))
        return time.perf_counter() - start


def _program(way: Way, rollout: Rollout, init: Any, inputs: Any, devices: Sequence[jax.Device]) -> Program:
    def over(axis: str) -> Mesh:
        return Mesh(np.array(devices[: way.num_devices]), (axis,), axis_types=(AxisType.Auto,))

    if way.layout == "by-neuron":
        return program(rollout, init, inputs, layout=by_neuron("neurons"), mesh=over("neurons"), mode="manual")
    if way.num_devices == 1:
        whole = Layout([("**", replicate()), ("batch.**", replicate())])
        return program(rollout, init, inputs, layout=whole, mesh=over("devices"))
    return program(rollout, init, inputs, layout=layout_of(way), mesh=over("devices"), mode="placed")
