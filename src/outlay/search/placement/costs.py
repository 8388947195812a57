"""What a step of a graph costs, part by part, and what it costs to have the parts in several places. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Read:
    """An output that parts read of another part.

    Attributes:
        part: what produces it.
        port: the output.
        reader: a part that reads it.
        num_bytes: of the output.
        latency: steps until it is read.
    """

    part: str
    port: str
    reader: str
    num_bytes: int
    latency: int = 1


@dataclass(frozen=True)
class Costs:
    """The costs of a graph on one kind of device. All seconds are of one step.

    Attributes:
        seconds: of each part, alone on one device.
        rows: of each part that can be split by rows, how many it has.
        reads: who reads what.
        per_place: seconds for each place of a placement, once an exchange.
        per_transfer: seconds for each array that is sent to a place, once an exchange.
        bandwidth: bytes/s from one device to another.
        all_gather: seconds for one all-gather of what parts with rows put out, by the number of devices.
        num_cores: cores that simulated devices share; None where each device computes for itself.
        is_measured: whether the seconds were measured, on these very devices, or estimated.
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
        """A step of all parts, one after the other."""
        return sum(self.seconds.values())

    @property
    def largest(self) -> str:
        """The part that takes longest."""
        return max(self.seconds, key=lambda name: self.seconds[name])

    @property
    def best_gain(self) -> float:
        """How much faster than one device any placement of whole parts can be at most: sum over max."""
        most = self.seconds[self.largest]
        return self.one_device / most if most else 1.0


@dataclass(frozen=True)
class Expected:
    """What a step would take in some arrangement.

    Attributes:
        work: seconds until the busiest device has computed, or the cores have, where they are shared.
        exchange: seconds for exchanges.
        num_bytes: sent in a step, all devices added up.
    """

    work: float
    exchange: float
    num_bytes: float

    @property
    def seconds(self) -> float:
        """Of a step."""
        return self.work + self.exchange


def expect_placed(costs: Costs, placement: Mapping[str, int]) -> Expected:
    """What a step takes with each part in its place.

    The busiest place sets the pace; that exchanges are hidden behind it is not counted on, since what a part reads in a
    step was put out in the step before.

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
    """What a step takes where each device computes some rows of the parts that can be split, and all of the others."""

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
    """What a step takes where every device computes everything."""
    return Expected(_paced(costs, costs.one_device, costs.one_device * num_devices, num_devices), 0.0, 0.0)


def _paced(costs: Costs, busiest: float, in_all: float, num_devices: int) -> float:
    """Where simulated devices share cores, these have to do the work of all."""
    return busiest if costs.num_cores is None else max(busiest, in_all / min(num_devices, costs.num_cores))
