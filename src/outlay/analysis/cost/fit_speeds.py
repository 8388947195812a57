"""The speeds of hardware at which a step would have been predicted to take what it took: a few constants, fitted."""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.table import Table

from outlay.analysis.cost.calibrate import peak_name, toml_lines
from outlay.analysis.cost.constants import product_speed
from outlay.analysis.cost.lanes import flattened
from outlay.analysis.cost.links import collective_seconds
from outlay.analysis.cost.price import time_on_lanes
from outlay.analysis.cost.schedule import Schedule
from outlay.core.error_types import TargetError
from outlay.core.output_file import write_output
from outlay.core.table import table, to_text
from outlay.devices.hardware import Hardware, hardware_in, known_hardware
from outlay.devices.target import Target

_ROUNDS = 8
"""How often operations are told apart by what bounds them, at the speeds of the round before."""

_STEPS, _WIDEST, _FINEST = 6, 4.0, 0.02
"""Of the search for a link's latency and bandwidth: steps each way, and the decades that they cover first and last."""

_TIE = 1e-4
"""How much a decade away from what was known weighs against the measurements, which may not tell the two apart."""

_HEAD = (
    "# Written by `outlay profile --calibrate`: the speeds at which this step would take what it took. --target {}:N\n"
)


@dataclass(frozen=True)
class FittedSpeeds:
    """What a measured step says of the hardware; what it says nothing of stays as it was known.

    Attributes:
        base: the hardware as it was known.
        hardware: the same with the speeds that were fitted.
        peak_flops: FLOP/s by dtype, of the products that the step has.
        memory_bandwidth: bytes/s; None where nothing waits for memory.
        link_bandwidth: bytes/s of a device inside of a host; None without collectives.
        link_latency: seconds of a step of a collective; None without collectives.
    """

    base: Hardware
    hardware: Hardware
    peak_flops: Mapping[str, float]
    memory_bandwidth: float | None
    link_bandwidth: float | None
    link_latency: float | None

    def to_dict(self) -> dict[str, Any]:
        """As the table of a file of hardware: only what was fitted."""
        speeds = {
            "memory_bandwidth": self.memory_bandwidth,
            "intra_host_link_bandwidth": self.link_bandwidth,
            "link_latency": self.link_latency,
            "peak_flops": dict(self.peak_flops) or None,
        }
        return {name: value for name, value in speeds.items() if value is not None}

    def write(self, path: Path, *, force: bool = False) -> None:
        """Write a file that a target can name: `--target my_cpu.toml:8`.

        Args:
            path: the file.
            force: write over one that Outlay did not make, too.

        Raises:
            TargetError: no hardware has such speeds, so that no target could name the file.
            OutputError: it cannot be written, or Outlay did not make it.
        """
        lines = toml_lines(self.base.key, self.to_dict())
        text = _HEAD.format(path.name) + "\n" + "\n".join(lines) + "\n"
        with tempfile.TemporaryDirectory() as folder:
            trial = Path(folder) / path.name
            trial.write_text(text, encoding="utf-8")
            try:
                hardware_in(str(trial))
            except TargetError as error:
                raise TargetError(
                    f"no hardware has the speeds that fit this step, and nothing was written: {error}"
                    "\n  fix: a larger step, which does not spend its time on starting operations, or a quieter machine"
                ) from error
        write_output(path, text, force=force)

    def __str__(self) -> str:
        return to_text(self)

    def __rich__(self) -> Table:
        before, after = self.base, self.hardware
        rows = [
            (f"products in {dtype}", _flops(before.peak_flops.get(dtype)), _flops(speed))
            for dtype, speed in self.peak_flops.items()
        ]
        if self.memory_bandwidth is not None:
            rows.append(("memory", _bytes(before.memory_bandwidth), _bytes(after.memory_bandwidth)))
        if self.link_bandwidth is not None:
            links = before.intra_host_link_bandwidth, after.intra_host_link_bandwidth
            rows.append(("links inside a host", _bytes(links[0]), _bytes(links[1])))
            rows.append(("a step of a collective", _microseconds(before), _microseconds(after)))
        head = (f"{before.key}, each device", "before", "fitted")
        return table(head, rows, right=head[1:])


def fit_speeds(schedule: Schedule, target: Target, measured: Mapping[str, float]) -> FittedSpeeds:
    """Find the speeds at which products, memory and collectives of a step take together what was measured.

    Of products of each dtype, of what waits for memory and of collectives the sums are made equal; the latency and the
    bandwidth of links stand to each other as suits large and small ones best. What was not measured counts nowhere.

    Args:
        schedule: the step.
        target: the hardware that it ran on.
        measured: seconds of a device in a step, by the name of the instruction.

    Raises:
        TargetError: nothing that was measured is priced.
    """
    own = target.hardware
    base = own if own.file else known_hardware(calibrated=False).get(own.key, replace(own, measured=None))
    hardware = replace(base, measured=None)
    events = {event.name: event for block in schedule.blocks.values() for event in block}
    peaks: dict[str, float] = {}
    memory: float | None = None
    for _ in range(_ROUNDS):
        sums: dict[str, list[float]] = {}
        for one in flattened(time_on_lanes(schedule, replace(target, hardware=hardware)).stretches):
            seconds = measured.get(one.name, 0.0)
            if one.lane != "compute" or one.part not in ("products", "memory") or seconds <= 0:
                continue
            name = events[one.name].dtype or "bfloat16" if one.part == "products" else ""
            predicted, took = sums.get(name, [0.0, 0.0])
            sums[name] = [predicted + one.seconds * one.runs, took + seconds]
        for dtype, (predicted, took) in sums.items():
            if not dtype:
                memory = _rounded(hardware.memory_bandwidth * predicted / took)
                hardware = replace(hardware, memory_bandwidth=memory)
                continue
            name = peak_name(dtype.removesuffix("-highest"), hardware)
            peaks[name] = _rounded(product_speed(hardware, dtype)[0] * predicted / took)
            hardware = replace(hardware, peak_flops={**hardware.peak_flops, name: peaks[name]})
    hardware, links = _with_links(schedule, replace(target, hardware=hardware), measured)
    if not peaks and memory is None and not links:
        raise TargetError("nothing that was measured has a price: there are no speeds to fit\n  fix: measure a step")
    bandwidth, latency = links or (None, None)
    return FittedSpeeds(base, hardware, peaks, memory, bandwidth, latency)


def _with_links(
    schedule: Schedule, target: Target, measured: Mapping[str, float]
) -> tuple[Hardware, tuple[float, float] | None]:
    """The hardware with the bandwidth and the latency that come nearest to the measured collectives, by ratios."""
    known = target.hardware
    took: dict[int, float] = {}
    for block in schedule.blocks.values():
        for event in block:
            if event.kind in ("exchange", "start") and measured.get(event.name, 0.0) > 0:
                took[event.number] = took.get(event.number, 0.0) + measured[event.name]
    whole = sum(took.values())
    if not whole:
        return known, None

    def predicted(hardware: Hardware, number: int) -> float:
        one, there = schedule.exchanges[number], replace(target, hardware=hardware)
        groups, where = schedule.groups[one.groups], schedule.locations or None
        return collective_seconds(one.kind, one.payload_bytes, groups, there, locations=where) * one.runs

    def distance(hardware: Hardware) -> float:
        total = 0.0
        for number, seconds in took.items():
            expected = predicted(hardware, number)
            total += seconds / whole * (math.log10(expected / seconds) ** 2 if expected > 0 else 0.0)
        moved = abs(math.log10(hardware.intra_host_link_bandwidth / known.intra_host_link_bandwidth))
        return total + _TIE * (moved + abs(math.log10(hardware.link_latency / known.link_latency)))

    best, width = known, _WIDEST
    while width > _FINEST:
        tried = [_scaled(best, *decades) for decades in itertools.product(_grid(width), repeat=2)]
        best = min(tried, key=distance)
        width /= 2
    # Now both as much slower or faster as makes the sum right: a device that waits for another one is part of it.
    slower = math.log10(whole / (sum(predicted(best, number) for number in took) or whole))
    best = _scaled(best, -slower, slower)
    return best, (best.intra_host_link_bandwidth, best.link_latency)


def _grid(width: float) -> Sequence[float]:
    return [width * step / _STEPS for step in range(-_STEPS, _STEPS + 1)]


def _scaled(hardware: Hardware, bandwidth: float, latency: float) -> Hardware:
    """The same with links so many decades faster, and slower to begin; the shortest collective follows."""
    return replace(
        hardware,
        intra_host_link_bandwidth=_rounded(hardware.intra_host_link_bandwidth * 10**bandwidth),
        link_latency=_rounded(hardware.link_latency * 10**latency),
    )


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


def _flops(speed: float | None) -> str:
    return "" if speed is None else f"{speed / 1e9:.4g} GFLOP/s"


def _bytes(speed: float) -> str:
    return f"{speed / 1e9:.4g} GB/s"


def _microseconds(hardware: Hardware) -> str:
    return f"{hardware.link_latency * 1e6:.3g} µs"
