"""Measure the costs of a graph on attached devices, or estimate them for devices that are not attached."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import jax

from outlay.analysis.cost.links import collective_seconds
from outlay.analysis.parts.measure_parts import PartTimes, measure_exchange, measure_parts
from outlay.analysis.parts.part_costs import explain_placed
from outlay.core.sizes import num_bytes
from outlay.devices.build import mesh as make_mesh
from outlay.devices.target import Target
from outlay.graph.graph_loop import GraphLoop
from outlay.graph.rows import Rows
from outlay.graph.step_graph import CACHE, INPUTS
from outlay.layout.strategies import by_module
from outlay.program.program import Program
from outlay.search.placement.costs import Costs, Read

_LAUNCH = 10e-6
"""Seconds assumed for launching a program or sending an array, if nothing is measured."""
_SIGNS_A_BYTE = 4


def attached(target: Target) -> list[jax.Device]:
    """Return the devices of a target if all of them are attached to this process, else none."""
    kind = target.hardware
    devices = [d for d in jax.local_devices() if d.platform == "cpu" or d.device_kind in kind.device_kinds]
    same = [device for device in devices if (device.platform == "cpu") == (kind.kind == "cpu")]
    return same[: target.num_devices] if len(same) >= target.num_devices else []


def measured_costs(
    graph_loop: GraphLoop,
    init: Callable[[Any], Any],
    inputs: Mapping[str, Any],
    target: Target,
    devices: list[jax.Device],
) -> tuple[Costs, PartTimes]:
    """Measure costs on attached devices: the parts alone on the first device, and exchanges between all."""
    times = measure_parts(graph_loop, init, inputs, device=devices[0])
    exchange = measure_exchange(devices) if len(devices) > 1 else None
    costs = _costs(
        graph_loop,
        init,
        target,
        seconds=times.seconds,
        per_place=exchange.per_place if exchange else 0.0,
        per_transfer=exchange.per_transfer if exchange else 0.0,
        all_gather=exchange.per_gather if exchange else {},
        num_cores=_num_cores() if target.hardware.kind == "cpu" else None,
        is_measured=True,
    )
    return costs, times


def estimated_costs(
    graph_loop: GraphLoop, init: Callable[[Any], Any], inputs: Mapping[str, Any], target: Target
) -> Costs:
    """Estimate costs from the parts compiled for the target, which need not be attached."""
    across = {"devices": "hosts"} if target.num_hosts > 1 else None
    mesh = make_mesh("devices=-1", over=across, target=target)
    layout = by_module({name: number % target.num_devices for number, name in enumerate(graph_loop.graph.parts)})
    explanation = explain_placed(Program(graph_loop, init, inputs, layout, mesh, "placed"), target)
    return _costs(
        graph_loop,
        init,
        target,
        seconds={part.name: part.cost for part in explanation.parts},
        per_place=_LAUNCH,
        per_transfer=_LAUNCH + target.hardware.link_latency,
        all_gather=_gathers(graph_loop, init, target),
        num_cores=None,
        is_measured=False,
    )


def _costs(graph_loop: GraphLoop, init: Callable[[Any], Any], target: Target, **known: Any) -> Costs:
    graph, state = graph_loop.graph, _state(init)
    sizes = _sizes(state)
    reads = tuple(
        Read(source.part, source.port, name, sizes[source.part, source.port], source.latency)
        for name, part in graph.parts.items()
        for sources in part.reads.values()
        for source in sources
        if source.part != INPUTS
    )
    bandwidth = target.hardware.intra_host_link_bandwidth
    return Costs(rows=_rows(graph_loop, state), reads=reads, bandwidth=bandwidth, **known)


def _gathers(graph_loop: GraphLoop, init: Callable[[Any], Any], target: Target) -> dict[int, float]:
    state = _state(init)
    split = _rows(graph_loop, state)
    gathered = sum(size for (part, _), size in _sizes(state).items() if part in split) / _SIGNS_A_BYTE
    several = range(2, target.num_devices + 1)
    return {num: collective_seconds("all-gather", gathered, [range(num)], target) for num in several}


def _state(init: Callable[[Any], Any]) -> Any:
    return jax.eval_shape(init, jax.eval_shape(lambda: jax.random.key(0)))


def _sizes(state: Any) -> dict[tuple[str, str], int]:
    """Return the bytes of each output, as it is cached."""
    cache = state[CACHE].items()
    return {(part, port): num_bytes(x.shape, x.dtype) for part, ports in cache for port, x in ports.items()}


def _rows(graph_loop: GraphLoop, state: Any) -> Mapping[str, int]:
    """Return the number of rows of each part that can be split by rows."""
    return Rows.of(graph_loop.graph, tuple(graph_loop.graph.parts), state, "", 1).num


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
