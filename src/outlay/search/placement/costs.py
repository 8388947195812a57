"""What a step of a graph costs, part by part, measured or estimated, and what it costs to place the parts apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax

from outlay.analysis.cost.links import collective_seconds
from outlay.analysis.parts.measure_parts import PartSeconds, PartTimes, measure_exchange, measure_parts
from outlay.analysis.parts.part_costs import explain_placed
from outlay.core.array_leaves import num_bytes
from outlay.core.runtime_flags import num_cores
from outlay.devices.build import mesh as make_mesh
from outlay.devices.target import Target
from outlay.graph.encoding import num_words
from outlay.graph.graph_loop import GraphLoop
from outlay.graph.rows import Rows
from outlay.graph.step_graph import CACHE, INPUTS
from outlay.layout.strategies import by_module
from outlay.program.program import Program


@dataclass(frozen=True)
class Read:
    """An output of a part that another part reads.

    Attributes:
        part: the part that produces it.
        port: the output.
        reader: a part that reads it.
        num_bytes: the bytes of the output.
        latency: steps until it is read.
        num_encoded_bytes: its bytes as it is sent where it is exchanged by rows; None for `num_bytes`.
    """

    part: str
    port: str
    reader: str
    num_bytes: int
    latency: int = 1
    num_encoded_bytes: int | None = None

    @property
    def num_bytes_by_rows(self) -> int:
        """The bytes that are sent to a device that has none of its rows."""
        return self.num_bytes if self.num_encoded_bytes is None else self.num_encoded_bytes


@dataclass(frozen=True)
class Costs(PartSeconds):
    """The costs of a graph on one kind of device. All seconds are per step.

    Attributes:
        seconds: the time of each part alone on one device.
        rows: the number of rows of each part that can be split by rows.
        reads: which part reads which output.
        per_group: seconds per group of devices, for each exchange.
        per_transfer: seconds per array that is sent to a group, for each exchange.
        bandwidth: bytes/s from one device to another.
        all_gather: seconds of one all-gather of the outputs with rows, by the number of devices.
        num_cores: cores that simulated devices share; None if each device computes by itself.
        is_measured: whether the seconds were measured on these very devices, or estimated.
    """

    rows: Mapping[str, int]
    reads: tuple[Read, ...]
    per_group: float
    per_transfer: float
    bandwidth: float
    all_gather: Mapping[int, float]
    num_cores: int | None
    is_measured: bool


@dataclass(frozen=True)
class Expected:
    """The expected time of a step in some arrangement.

    Attributes:
        work: seconds until the busiest device is done, or the cores are, if devices share them.
        exchange: seconds for exchanges.
        num_bytes: bytes sent in a step by all devices together.
    """

    work: float
    exchange: float
    num_bytes: float

    @property
    def seconds(self) -> float:
        """The time of a step."""
        return self.work + self.exchange


def work_by_device(costs: Costs, placement: Mapping[str, int]) -> dict[int, float]:
    """Return the seconds of the parts on each device that has some, by number."""
    busy: dict[int, float] = {}
    for name, device in placement.items():
        busy[device] = busy.get(device, 0.0) + costs.seconds[name]
    return busy


def expect_placed(costs: Costs, placement: Mapping[str, int]) -> Expected:
    """Return the time of a step with each part on its device.

    The busiest device sets the pace. Exchanges are not assumed to be hidden behind it, because what a part reads in a
    step was produced only in the step before.

    Args:
        costs: the costs.
        placement: the device of each part, by number.
    """
    busy = work_by_device(costs, placement)
    crossing = [read for read in costs.reads if placement[read.part] != placement[read.reader]]
    sent = {(read.part, read.port, placement[read.reader]): read.num_bytes for read in crossing}
    # So many steps run between two exchanges.
    block = min((read.latency for read in crossing), default=1)
    exchange = (len(busy) * costs.per_group + len(sent) * costs.per_transfer) / block if crossing else 0.0
    num_bytes = float(sum(sent.values()))
    moving = num_bytes / costs.bandwidth
    return Expected(_paced(costs, max(busy.values()), sum(busy.values()), len(busy)), exchange + moving, num_bytes)


def expect_by_rows(costs: Costs, num_devices: int) -> Expected:
    """Return the time of a step in which each device computes some rows of the parts with rows, and all other parts."""

    def here(name: str) -> float:
        num = costs.rows.get(name)
        return costs.seconds[name] * (math.ceil(num / num_devices) / num if num else 1.0)

    work = sum(here(name) for name in costs.seconds)
    read = {(one.part, one.port): one.num_bytes_by_rows for one in costs.reads if one.part in costs.rows}
    return Expected(
        _paced(costs, work, work * num_devices, num_devices),
        costs.all_gather.get(num_devices, 0.0),
        float(sum(read.values())) * (num_devices - 1),
    )


def expect_copies(costs: Costs, num_devices: int) -> Expected:
    """Return the time of a step in which every device computes everything."""
    return Expected(_paced(costs, costs.sum, costs.sum * num_devices, num_devices), 0.0, 0.0)


def _paced(costs: Costs, busiest: float, in_all: float, num_devices: int) -> float:
    """Return the time of the busiest device, or, if simulated devices share cores, of all work on these cores."""
    return busiest if costs.num_cores is None else max(busiest, in_all / min(num_devices, costs.num_cores))


_LAUNCH = 10e-6
"""Seconds assumed for launching a program or sending an array, if nothing is measured."""


def attached(target: Target) -> list[jax.Device]:
    """Return the devices of a target if all of them are attached to this process, else none."""
    kind = target.hardware
    # A target that is a CPU may be any CPU; other hardware goes by its name.
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
        per_group=exchange.per_group if exchange else 0.0,
        per_transfer=exchange.per_transfer if exchange else 0.0,
        all_gather=exchange.per_gather if exchange else {},
        num_cores=num_cores() if target.hardware.kind == "cpu" else None,
        is_measured=True,
    )
    return costs, times


def estimated_costs(
    graph_loop: GraphLoop, init: Callable[[Any], Any], inputs: Mapping[str, Any], target: Target
) -> Costs:
    """Estimate costs from the parts compiled for the target, which need not be attached."""
    across = {"devices": "hosts"} if target.num_hosts > 1 else None
    mesh = make_mesh("devices=-1", over=across, target=target)
    # Where a part is makes no difference here: each is priced alone.
    layout = by_module({name: number % target.num_devices for number, name in enumerate(graph_loop.graph.parts)})
    explanation = explain_placed(Program(graph_loop, init, inputs, layout, mesh, "placed"), target)
    return _costs(
        graph_loop,
        init,
        target,
        seconds={part.name: part.cost for part in explanation.parts},
        per_group=_LAUNCH,
        per_transfer=_LAUNCH + target.hardware.link_latency,
        all_gather=_gathers(graph_loop, init, target),
        num_cores=None,
        is_measured=False,
    )


def _costs(graph_loop: GraphLoop, init: Callable[[Any], Any], target: Target, **known: Any) -> Costs:
    graph, state = graph_loop.graph, _state(init)
    sizes, encoded = _sizes(state), _encoded_sizes(graph_loop, state)
    reads = tuple(
        Read(source.part, source.port, name, sizes[at], source.latency, encoded[at])
        for name, part in graph.parts.items()
        for sources in part.reads.values()
        for source in sources
        if source.part != INPUTS and (at := (source.part, source.port))
    )
    bandwidth = target.hardware.intra_host_link_bandwidth
    return Costs(rows=_rows(graph_loop, state), reads=reads, bandwidth=bandwidth, **known)


def _gathers(graph_loop: GraphLoop, init: Callable[[Any], Any], target: Target) -> dict[int, float]:
    state = _state(init)
    split = _rows(graph_loop, state)
    gathered = sum(size for (part, _), size in _encoded_sizes(graph_loop, state).items() if part in split)
    several = range(2, target.num_devices + 1)
    return {num: collective_seconds("all-gather", gathered, [range(num)], target) for num in several}


def _state(init: Callable[[Any], Any]) -> Any:
    return jax.eval_shape(init, jax.eval_shape(lambda: jax.random.key(0)))


def _sizes(state: Any) -> dict[tuple[str, str], int]:
    """Return the bytes of each output, as it is cached."""
    cache = state[CACHE].items()
    return {(part, port): num_bytes(x.shape, x.dtype) for part, ports in cache for port, x in ports.items()}


def _encoded_sizes(graph_loop: GraphLoop, state: Any) -> dict[tuple[str, str], int]:
    """Return the bytes of one step of each output as it is sent where it is exchanged by rows."""
    graph, sizes = graph_loop.graph, {}
    for part, ports in state[CACHE].items():
        for port, cached in ports.items():
            newest = jax.eval_shape(lambda x, part=part, port=port: graph.cached_value(part, port, x), cached)
            sizes[part, port] = 4 * num_words(newest, graph.parts[part].encoding(port))
    return sizes


def _rows(graph_loop: GraphLoop, state: Any) -> Mapping[str, int]:
    """Return the number of rows of each part that can be split by rows."""
    return Rows.of(graph_loop.graph, tuple(graph_loop.graph.parts), state, "", 1).num
