"""Evidence beside a price: the published runs that are nearest to a step, with what was measured and predicted of them.

The table is written by `python benchmarks/published.py --known --evidence`, which prices every run anew.
"""

from __future__ import annotations

import csv
import functools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from outlay.core.one_line import OneLine
from outlay.devices.hardware import Hardware
from outlay.devices.target import Target

_OTHER_HARDWARE = 20.0
_OTHER_LAYOUT = 2.0
_OTHER_PRECISION = 4.0
"""What another chip, kind of layout or width of products weighs beside a factor of two in devices or in work."""


@dataclass(frozen=True)
class PublishedRun(OneLine):
    """A training run that somebody measured and published, and what is predicted of it.

    Attributes:
        model: as the source names it.
        target: the hardware, as in `--target`.
        layout: what the field calls it: `fsdp`, `hsdp`, `zero1`, `zero2`, `dp`, with `tp` and `sp` beside it.
        precision: of its products.
        devices: how many.
        flops: of a device in a step, without what is recomputed.
        published: seconds of a step.
        predicted: seconds that `estimate` says.
        low: the least that it says.
        high: the most.
        left_out: seconds that it says with constants that were fitted without this source.
        source: repository and file.
        date: of the source.
    """

    model: str
    target: str
    layout: str
    precision: str
    devices: int
    flops: float
    published: float
    predicted: float
    low: float
    high: float
    left_out: float
    source: str
    date: str

    @property
    def is_fp8(self) -> bool:
        """Whether its products are in 8 bits."""
        return self.precision.upper().startswith(("FP8", "FLOAT8"))

    @property
    def ratio(self) -> float:
        """Predicted over published."""
        return self.predicted / self.published

    @property
    def ratio_left_out(self) -> float:
        """The same, where this source had no part in any constant."""
        return self.left_out / self.published


@functools.cache
def published_runs() -> tuple[PublishedRun, ...]:
    """Return all published runs of the table.

    >>> len(published_runs()) > 100
    True
    """
    text = (resources.files("outlay.analysis.cost") / "published_runs.csv").read_text(encoding="utf-8")
    return tuple(_read(row) for row in csv.DictReader(text.splitlines()))


def _read(row: dict[str, str]) -> PublishedRun:
    numbers = {"devices": int} | dict.fromkeys(("flops", "published", "predicted", "low", "high", "left_out"), float)
    values: dict[str, Any] = {name: numbers.get(name, str)(value) for name, value in row.items()}
    return PublishedRun(**values)


def nearest_runs(
    hardware: Hardware,
    num_devices: int,
    flops: float,
    splits: Collection[str] = (),
    *,
    in_fp8: bool = False,
    most: int = 3,
) -> Sequence[PublishedRun]:
    """Return the published runs that are most like a step, nearest first.

    A run on the same chip comes before all others; then what counts is how often devices and the work of each have to
    be doubled or halved, whether parameters and layers are split likewise, and whether both multiply in 8 bits.

    Args:
        hardware: the step's.
        num_devices: its number of devices.
        flops: what one of them computes in a step.
        splits: what is split besides the batch: `parameters`, `layers` (tensor parallelism), or both.
        in_fp8: whether its products are in 8 bits.
        most: how many to return.

    Returns:
        None for simulated CPUs; on a chip of which there is no run, those of other chips of the same kind.

    >>> h100 = Target.parse("h100:1x8").hardware
    >>> [(run.model, run.target, run.layout) for run in nearest_runs(h100, 8, 1e15, {"parameters"}, most=1)]
    [('llama2-7b', 'h100-a3:1x8', 'fsdp')]
    """

    def distance(run: PublishedRun) -> float:
        doublings = abs(math.log2(run.devices / num_devices)) + abs(math.log2(run.flops / max(flops, 1.0)))
        alike = _splits(run.layout) == set(splits)
        same_chip = Target.parse(run.target).hardware.name == hardware.name
        unlike = (not alike) * _OTHER_LAYOUT + (run.is_fp8 != in_fp8) * _OTHER_PRECISION
        return doublings + unlike + (not same_chip) * _OTHER_HARDWARE

    of_kind = [run for run in published_runs() if Target.parse(run.target).hardware.kind == hardware.kind]
    alike: dict[tuple[str, str, str, bool], PublishedRun] = {}
    for run in sorted(of_kind, key=distance):
        # Runs that differ in the batch alone are one.
        alike.setdefault((run.model, run.target, run.layout, run.is_fp8), run)
    return list(alike.values())[:most]


def _splits(layout: str) -> set[str]:
    names = set(layout.split("+"))
    return ({"parameters"} if names & {"fsdp", "hsdp"} else set()) | ({"layers"} if "tp" in names else set())
