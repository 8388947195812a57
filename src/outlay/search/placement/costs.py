"""What a step of a graph costs, part by part, and what it costs to place the parts apart. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Read:
    """An output of a part that another part reads.

    Attributes:
        part: the part that produces it.
        port: the output.
        reader: a part that reads it.
        num_bytes: the bytes of the output.
        latency: steps until it is read.
    """

    part: str
    port: str
    reader: str
    num_bytes: int
    latency: int = 1


@dataclass(frozen=True)
class Costs:
    """The costs of a graph on one kind of device. All seconds are per step.

    Attributes:
        seconds: the time of each part alone on one device.
        rows: the number of rows of each part that can be split by rows.
        reads: which part reads which output.
        per_place: seconds per place of a placement, for each exchange.
        per_transfer: seconds per array that is sent to a place, for each exchange.
        bandwidth: bytes/s from one device to another.
        all_gather: seconds of one all-gather of the outputs with rows, by the number of devices.
        num_cores: cores that simulated devices share; None if each device computes by itself.
        is_measured: whether the seconds were measured on these very devices, or estimated.
    """

    seconds: Mapping[str, float]
    rows: Mapping[str, int]
    reads: tuple[Read, ...]
    per_place: float
    per_transfer: float
    bandwidth: float
    all_gather: Mapping[int, float]
    num_cores: int | None
    is_measured: bool

    @property
    def one_device(self) -> float:
        """The time of a step of all parts, one after the other."""
        return sum(self.seconds.values())

    @property
    def largest(self) -> str:
        """The part that takes longest."""
        return max(self.seconds, key=lambda name: self.seconds[name])

    @property
    def best_gain(self) -> float:
        """The largest possible speed-up of placing whole parts: sum over max."""
        most = self.seconds[self.largest]
        return self.one_device / most if most else 1.0


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


def expect_placed(costs: Costs, placement: Mapping[str, int]) -> Expected:
    """Return the time of a step with each part in its place.

    The busiest place sets the pace. Exchanges are not assumed to be hidden behind it, because what a part reads in a
    step was produced only in the step before.

    Args:
        costs: the costs.
        placement: the place of each part, a number.
    """
    busy: dict[int, float] = {}
    for name, place in placement.items():
        busy[place] = busy.get(place, 0.0) + costs.seconds[name]
    crossing = [read for read in costs.reads if placement[read.part] != placement[read.reader]]
    sent = {(read.part, read.port, placement[read.reader]): read.num_bytes for read in crossing}
    # So many steps run between two exchanges.
    block = min((read.latency for read in crossing), default=1)
    exchange = (len(busy) * costs.per_place + len(sent) * costs.per_transfer) / block if crossing else 0.0
    num_bytes = float(sum(sent.values()))
    moving = num_bytes / costs.bandwidth
    return Expected(_paced(costs, max(busy.values()), sum(busy.values()), len(busy)), exchange + moving, num_bytes)


def expect_by_rows(costs: Costs, num_devices: int) -> Expected:
    """Return the time of a step in which each device computes some rows of the parts with rows, and all other parts."""

    def here(name: str) -> float:
        num = costs.rows.get(name)
        return costs.seconds[name] * (math.ceil(num / num_devices) / num if num else 1.0)

    work = sum(here(name) for name in costs.seconds)
    read = {(one.part, one.port): one.num_bytes for one in costs.reads if one.part in costs.rows}
    return Expected(
        _paced(costs, work, work * num_devices, num_devices),
        costs.all_gather.get(num_devices, 0.0),
        float(sum(read.values())) * (num_devices - 1),
    )


def expect_copies(costs: Costs, num_devices: int) -> Expected:
    """Return the time of a step in which every device computes everything."""
    return Expected(_paced(costs, costs.one_device, costs.one_device * num_devices, num_devices), 0.0, 0.0)


def _paced(costs: Costs, busiest: float, in_all: float, num_devices: int) -> float:
    """Return the time of the busiest device, or, if simulated devices share cores, of all work on these cores."""
    return busiest if costs.num_cores is None else max(busiest, in_all / min(num_devices, costs.num_cores))
