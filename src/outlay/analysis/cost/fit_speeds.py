"""Fit a few hardware speeds so that the predicted time of a step equals the measured time."""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from outlay.analysis.cost.calibrate import peak_name
from outlay.analysis.cost.constants import product_speed
from outlay.analysis.cost.lanes import flattened
from outlay.analysis.cost.links import collective_seconds
from outlay.analysis.cost.price import time_on_lanes
from outlay.analysis.cost.schedule import Schedule
from outlay.core.error_types import TargetError
from outlay.core.output_file import write_output
from outlay.core.toml import toml_table
from outlay.devices.hardware import Hardware, hardware_in, known_hardware
from outlay.devices.target import Target
from outlay.render.page import Column, Page, Row, Table
from outlay.render.report import Report

_ROUNDS = 8
"""The number of rounds; each classifies operations by what bounds them at the speeds of the previous round."""

_STEPS, _WIDEST, _FINEST = 6, 4.0, 0.02
"""The grid search for latency and bandwidth: steps in each direction, and decades of the first and last grid."""

_TIE = 1e-4
"""The penalty per decade of change: measurements alone may not separate latency from bandwidth."""

_HEAD = "# Written by `outlay profile --calibrate`: speeds fitted to one measured step. Use as --target {}:N\n"


@dataclass(frozen=True)
class FittedSpeeds(Report):
    """Hardware speeds fitted to a measured step; speeds that the step does not exercise keep their known values.

    Attributes:
        base: the hardware before fitting.
        hardware: the hardware with the fitted speeds.
        peak_flops: FLOP/s by dtype, for the products in the step.
        memory_bandwidth: bytes/s; None if nothing in the step is bound by memory.
        link_bandwidth: bytes/s of a device inside a host; None without collectives.
        link_latency: seconds per step of a collective; None without collectives.
    """

    base: Hardware
    hardware: Hardware
    peak_flops: Mapping[str, float]
    memory_bandwidth: float | None
    link_bandwidth: float | None
    link_latency: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return the table for a targets file, with the fitted speeds only."""
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
            force: also overwrite a file that Outlay did not create.

        Raises:
            TargetError: the speeds are impossible, so no target could use the file.
            OutputError: the file cannot be written, or Outlay did not create it.
        """
        lines = toml_table(self.base.key, self.to_dict())
        text = _HEAD.format(path.name) + "\n" + "\n".join(lines) + "\n"
        # Only reading it as a target tells whether a target could use it, so it is written elsewhere first.
        with tempfile.TemporaryDirectory() as folder:
            trial = Path(folder) / path.name
            trial.write_text(text, encoding="utf-8")
            try:
                hardware_in(str(trial))
            except TargetError as error:
                raise TargetError(
                    f"the speeds that fit this step are impossible; nothing was written: {error}"
                    "\n  fix: measure a larger step, not dominated by launch overhead, or use a quieter machine"
                ) from error
        write_output(path, text, force=force)

    def _page(self) -> Page:
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
        columns = [Column("speed"), Column("before", "number"), Column("fitted", "number")]
        return Page(f"{before.key}: each device, fitted to a step", [Table(columns, [Row(row) for row in rows])])


def fit_speeds(schedule: Schedule, target: Target, measured: Mapping[str, float]) -> FittedSpeeds:
    """Fit the speeds of products, memory and links to a measured step.

    The predicted and the measured totals become equal for products of each dtype, for memory-bound operations and for
    collectives. The ratio of latency and bandwidth of links is fitted to small and large collectives. Operations that
    were not measured are ignored.

    Args:
        schedule: the step.
        target: the hardware that it ran on.
        measured: seconds per device and step, by the name of the instruction.

    Raises:
        TargetError: no measured operation has a price.
    """
    own = target.hardware
    # Not from `calibrated.toml`: its measured collectives would be used instead of the speeds that are fitted (decision
    # 67).
    base = own if own.file else known_hardware(calibrated=False).get(own.key, replace(own, measured=None))
    # Repeat, because other speeds change which operations are bound by products and which by memory.
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
            predicted, spent = sums.get(name, [0.0, 0.0])
            sums[name] = [predicted + one.seconds * one.runs, spent + seconds]
        for dtype, (predicted, spent) in sums.items():
            if not dtype:
                memory = _rounded(hardware.memory_bandwidth * predicted / spent)
                hardware = replace(hardware, memory_bandwidth=memory)
                continue
            name = peak_name(dtype.removesuffix("-highest"), hardware)
            peaks[name] = _rounded(product_speed(hardware, dtype)[0] * predicted / spent)
            hardware = replace(hardware, peak_flops={**hardware.peak_flops, name: peaks[name]})
    hardware, links = _with_links(schedule, replace(target, hardware=hardware), measured)
    if not peaks and memory is None and not links:
        raise TargetError("no measured operation has a price, so there are no speeds to fit\n  fix: measure a step")
    bandwidth, latency = links or (None, None)
    return FittedSpeeds(base, hardware, peaks, memory, bandwidth, latency)


def _with_links(
    schedule: Schedule, target: Target, measured: Mapping[str, float]
) -> tuple[Hardware, tuple[float, float] | None]:
    """Fit bandwidth and latency of the links to the measured collectives, by the ratios of times."""
    known = target.hardware
    spent: dict[int, float] = {}
    for block in schedule.blocks.values():
        for event in block:
            if event.kind in ("exchange", "start") and measured.get(event.name, 0.0) > 0:
                spent[event.number] = spent.get(event.number, 0.0) + measured[event.name]
    whole = sum(spent.values())
    if not whole:
        return known, None

    def predicted(hardware: Hardware, number: int) -> float:
        one, there = schedule.exchanges[number], replace(target, hardware=hardware)
        groups, where = schedule.groups[one.groups], schedule.locations or None
        return collective_seconds(one.kind, one.payload_bytes, groups, there, locations=where) * one.runs

    def distance(hardware: Hardware) -> float:
        total = 0.0
        for number, seconds in spent.items():
            expected = predicted(hardware, number)
            total += seconds / whole * (math.log10(expected / seconds) ** 2 if expected > 0 else 0.0)
        moved = abs(math.log10(hardware.intra_host_link_bandwidth / known.intra_host_link_bandwidth))
        return total + _TIE * (moved + abs(math.log10(hardware.link_latency / known.link_latency)))

    best, width = known, _WIDEST
    while width > _FINEST:
        tried = [_scaled(best, *decades) for decades in itertools.product(_grid(width), repeat=2)]
        best = min(tried, key=distance)
        width /= 2
    # Scale both so that the total matches: measured collectives include waiting for slower devices.
    slower = math.log10(whole / (sum(predicted(best, number) for number in spent) or whole))
    best = _scaled(best, -slower, slower)
    return best, (best.intra_host_link_bandwidth, best.link_latency)


def _grid(width: float) -> Sequence[float]:
    return [width * step / _STEPS for step in range(-_STEPS, _STEPS + 1)]


def _scaled(hardware: Hardware, bandwidth: float, latency: float) -> Hardware:
    """Scale link bandwidth and latency by decades; the shortest collective scales with the latency."""
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
