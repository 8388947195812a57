"""`outlay calibrate`: measure the real speeds of this machine with all devices busy, and save them as a target."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from outlay.analysis.cost.measure import (
    GROUP,
    across_rows_seconds,
    copy_seconds,
    exchange_seconds,
    exchanges,
    operation_seconds,
    product_seconds,
    step_seconds,
)
from outlay.core.error_types import TargetError
from outlay.core.jax_compat import attached_devices
from outlay.core.output_file import write_output
from outlay.core.quantities import counted, format_seconds
from outlay.core.toml import toml_table
from outlay.devices.compile_only import target_of
from outlay.devices.hardware import Hardware
from outlay.devices.hardware_file import read_tables
from outlay.devices.measured import CollectiveCost, Measured
from outlay.render.page import Column, Page, Row, Table
from outlay.render.report import Report


@dataclass(frozen=True)
class Sizes:
    """The sizes of the measurements: small enough for the machine, large enough to reach full speed.

    Attributes:
        exchanged: bytes per device of the collectives.
        copied: bytes per device of the copy.
        product: rows and width of the matrix product.
        widths: rows and columns of the matrices that are read across their rows, together half of `copied`.
        patience: seconds per timing; each is repeated a few times.
    """

    exchanged: tuple[int, ...]
    copied: int
    product: tuple[int, int]
    widths: tuple[int, ...]
    patience: float = 0.04


CPU_SIZES = Sizes(exchanged=(2**12, 2**16, 2**20, 2**22), copied=2**23, product=(128, 1024), widths=(64, 256, 1024))
GPU_SIZES = Sizes(exchanged=(2**14, 2**18, 2**22, 2**26), copied=2**28, product=(8192, 8192), widths=(64, 1024, 8192))
DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True)
class Calibration(Report):
    """The speeds of one device while all are busy; returned by `calibrate`.

    Attributes:
        base: the hardware as described before the measurement.
        memory_bandwidth: bytes/s, reads and writes together.
        peak_flops: FLOP/s of matrix products by dtype, named as in targets.
        measured: overheads and collectives.
    """

    base: Hardware
    memory_bandwidth: float
    peak_flops: dict[str, float]
    measured: Measured

    @property
    def hardware(self) -> Hardware:
        """The hardware with the measured speeds."""
        return dataclasses.replace(
            self.base,
            memory_bandwidth=self.memory_bandwidth,
            peak_flops={**self.base.peak_flops, **self.peak_flops},
            clock_share=1.0,
            measured=self.measured,
            source="measured just now",
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the table for a targets file."""
        return {
            "memory_bandwidth": self.memory_bandwidth,
            "peak_flops": dict(self.peak_flops),
            "measured": self.measured.to_table(),
        }

    def write(self, path: Path, *, force: bool = False) -> None:
        """Put the table into a file of measured targets, and keep the tables of other hardware.

        Args:
            path: the file.
            force: also write to a file that Outlay did not create; its comments are lost.

        Raises:
            TargetError: the file cannot be read.
            OutputError: the file cannot be written, or Outlay did not create it.
        """
        put_table(path, self.base.key, self.to_dict(), force=force)

    def _page(self) -> Page:
        rows = [
            ("memory", "", "", f"{self.memory_bandwidth / 1e9:.3g} GB/s"),
            *(
                (f"memory, across rows of {pitch} bytes", "", "", f"{speed / 1e9:.3g} GB/s")
                for pitch, speed in self.measured.across_rows.items()
            ),
            *((f"products in {name}", "", "", f"{f / 1e9:.4g} GFLOP/s") for name, f in self.peak_flops.items()),
            ("an empty step", "", format_seconds(self.measured.seconds_per_step), ""),
            ("one more operation", "", format_seconds(self.measured.seconds_per_operation), ""),
        ]
        for kind, sizes in self.measured.collectives.items():
            rows += [(kind, str(size), *_call_and_speed(cost)) for size, cost in sizes.items()]
        columns = [Column("measured"), *(Column(head, "number") for head in ("group", "a call", "speed"))]
        of = counted(self.measured.num_devices, "device")
        return Page(f"{self.base.key}: each of {of}, all of them busy", [Table(columns, [Row(row) for row in rows])])


def _call_and_speed(cost: CollectiveCost) -> tuple[str, str]:
    return format_seconds(cost.seconds_per_call), f"{cost.bytes_per_second / 1e9:.3g} GB/s"


def calibrate(
    devices: Sequence[jax.Device] | None = None,
    *,
    sizes: Sizes | None = None,
    on_progress: Callable[[str], None] = lambda what: None,
) -> Calibration:
    """Measure how fast devices compute, copy and communicate when all of them do so at once.

    Collectives are measured for groups of 2, 4, 8, ... devices and for all of them.

    Args:
        devices: the devices; by default all that JAX has.
        sizes: the sizes to measure; by default what suits the hardware.
        on_progress: called with a description of the next measurement.

    Raises:
        TargetError: no target describes this hardware.
    """
    busy = list(attached_devices() if devices is None else devices)
    hardware = _hardware(busy)
    sizes = sizes or (CPU_SIZES if hardware.kind == "cpu" else GPU_SIZES)
    everybody = _mesh(busy, len(busy))
    on_progress("memory")
    # Each byte is read and written.
    bandwidth = 2 * sizes.copied / copy_seconds(sizes.copied, everybody, sizes.patience)
    across_rows = {4 * width: _across_rows(width, sizes, bandwidth, everybody) for width in sizes.widths}
    flops = {}
    for dtype in DTYPES:
        on_progress(f"products in {dtype}")
        rows, width = sizes.product
        seconds = product_seconds(rows, width, dtype, everybody, sizes.patience)
        flops[peak_name(dtype, hardware)] = 2 * rows * width**2 / seconds
    on_progress("overheads")
    step, operation = step_seconds(everybody), operation_seconds(everybody, sizes.patience)
    collectives: dict[str, dict[int, CollectiveCost]] = {}
    for group in _group_sizes(len(busy)):
        mesh = _mesh(busy, group)
        for kind, exchange in exchanges(group).items():
            on_progress(f"{kind} of {group}")
            times = [exchange_seconds(exchange, size, mesh, sizes.patience) for size in sizes.exchanged]
            collectives.setdefault(kind, {})[group] = fit(sizes.exchanged, times)
    return Calibration(hardware, bandwidth, flops, Measured(len(busy), step, operation, across_rows, collectives))


def fit(num_bytes: Sequence[float], seconds: Sequence[float]) -> CollectiveCost:
    """Fit a line through measured times with equal relative error for small and large sizes.

    >>> fit([1e3, 1e6], [2e-5 + 1e-6, 2e-5 + 1e-3])
    CollectiveCost(seconds_per_call=2e-05, bytes_per_second=1000000000.0)
    """
    sizes, times = np.asarray(num_bytes, float), np.asarray(seconds, float)
    rows = np.stack([1 / times, sizes / times], axis=1)
    (call, a_byte), *_ = np.linalg.lstsq(rows, np.ones(len(times)), rcond=None)
    if call < 0:  # noise: a latency cannot be negative
        call, a_byte = 0.0, float(rows[:, 1].sum() / (rows[:, 1] ** 2).sum())
    if a_byte <= 0:  # noise, or too few bytes to matter
        call, a_byte = float(times.min()), 1e-15
    # The measurement has fewer digits than that; more would only make the file hard to read.
    return CollectiveCost(float(f"{call:.6g}"), float(f"{1 / a_byte:.6g}"))


def _across_rows(width: int, sizes: Sizes, bandwidth: float, mesh: Mesh) -> float:
    """Measure the bandwidth of reading across rows. Of the three arrays moved, two are read and written along rows."""
    num_bytes = max(sizes.copied // 2, 4 * width**2)
    seconds = across_rows_seconds(num_bytes, width, mesh, sizes.patience) - 2 * num_bytes / bandwidth
    # Noise may leave nothing of the difference; and nothing is faster than reading along rows.
    return min(num_bytes / max(seconds, 1e-9), bandwidth)


def _hardware(devices: Sequence[jax.Device]) -> Hardware:
    target = target_of(_mesh(devices, len(devices)))
    if target is None:
        raise TargetError(
            f"no target describes {devices[0].device_kind!r}, so it cannot be calibrated\n"
            f'  fix: describe it in your targets file, with name = "{devices[0].device_kind}"'
        )
    return target.hardware


def _mesh(devices: Sequence[jax.Device], group_size: int) -> Mesh:
    array = np.array(devices, dtype=object).reshape(-1, group_size)
    return Mesh(array, ("groups", GROUP), axis_types=(AxisType.Auto,) * 2)


def _group_sizes(num_devices: int) -> list[int]:
    """List the group sizes: 2, 4, 8, ... while they divide the number of devices, and all devices."""
    powers = [2**k for k in range(1, int(math.log2(num_devices)) + 1) if num_devices % 2**k == 0]
    return sorted({*powers, num_devices} - {1})


def peak_name(dtype: str, hardware: Hardware) -> str:
    """Return the target's name for the default speed of products of a dtype."""
    return "tf32" if dtype == "float32" and "tf32" in hardware.peak_flops else dtype


_HEAD = (
    "# Written by `outlay calibrate`, which overwrites its own measurements. Put your own numbers into targets.toml.\n"
)


def put_table(path: Path, key: str, table: Mapping[str, Any], *, force: bool = False) -> None:
    """Write one table of a file, and keep the others.

    Args:
        path: the file.
        key: the name of the table.
        table: the content of the table.
        force: also write to a file that Outlay did not create.

    Raises:
        TargetError: the file is not TOML or cannot be read, or its folder cannot be created.
        OutputError: the file cannot be written, or Outlay did not create it.
    """
    tables = read_tables(path) if path.is_file() else {}
    tables[key] = dict(table)
    text = _HEAD + "".join("\n" + "\n".join(toml_table(name, values)) + "\n" for name, values in tables.items())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TargetError(f"{path.parent} cannot be created: {error.strerror}\n  fix: --output FILE") from error
    write_output(path, text, force=force)
