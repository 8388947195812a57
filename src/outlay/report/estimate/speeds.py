"""How fast a target computes and moves bytes: by its data sheet or as measured, and the share of it that is reached."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from outlay.meshes.hardware import Hardware


@dataclass(frozen=True)
class Range:
    """A lower and an upper bound, in seconds or as a share."""

    low: float
    high: float

    def __add__(self, other: Range) -> Range:
        return Range(self.low + other.low, self.high + other.high)

    @property
    def middle(self) -> float:
        """The geometric mean: as far from one bound as from the other, as a ratio."""
        return (self.low * self.high) ** 0.5


@dataclass(frozen=True)
class Reach:
    """What share of a speed programs reach, and what an operation costs besides.

    Attributes:
        products: share of the FLOP/s that matrix products and convolutions reach.
        memory: share of the memory's bandwidth.
        links: share of the speed to expect of the links, see `links.collective_seconds`.
        seconds_per_operation: between the end of one operation and the start of the next.
        seconds_per_step: what a step takes that does nothing.
    """

    products: Range
    memory: Range
    links: Range
    seconds_per_operation: Range
    seconds_per_step: Range


# A data sheet's speeds are not reached. Large matrix products come to 60 to 80 % of them on A100 and H100, training
# steps as a whole to 40 to 60 %; streaming kernels to 80 to 90 % of the bandwidth. Of collectives the expected time has
# those shares already; nine of ten published ones lie within a quarter of it.
_DATA_SHEET = Reach(
    products=Range(0.4, 0.8),
    memory=Range(0.6, 0.9),
    links=Range(0.8, 1.25),
    seconds_per_operation=Range(0.0, 2e-6),
    seconds_per_step=Range(0.0, 0.0),
)


def reach_of(hardware: Hardware) -> Reach:
    """The shares to expect: rough ones of a data sheet's speeds, narrow ones of measured speeds."""
    measured = hardware.measured
    if measured is None:
        return _DATA_SHEET
    operation, step = measured.seconds_per_operation, measured.seconds_per_step
    return Reach(
        products=Range(0.7, 1.1),
        memory=Range(0.7, 1.1),
        links=Range(0.7, 1.2),
        seconds_per_operation=Range(operation, operation),
        seconds_per_step=Range(step, step),
    )


def product_speed(hardware: Hardware, dtype: str) -> tuple[float, str]:
    """The FLOP/s of products of a dtype, and which number of the target that is, in words.

    Args:
        hardware: the kind of device.
        dtype: as in `CompiledWork`; `float32-highest` is float32 with precision asked for.
    """
    peaks = hardware.peak_flops
    if dtype == "float32" and hardware.kind == "gpu" and "tf32" in peaks:
        return peaks["tf32"], "float32 products in tf32, as XLA does unless asked for precision"
    if dtype.startswith("float32") and hardware.kind == "tpu":
        passes = 6 if dtype == "float32-highest" else 1
        return peaks["bfloat16"] / passes, f"float32 products in {passes} pass(es) of bfloat16"
    name = dtype.removesuffix("-highest")
    if name in peaks:
        return peaks[name], f"{name} products at its own speed"
    instead = next((other for other in _instead(name) if other in peaks), next(iter(peaks)))
    part = 0.5 if name == "float64" else 1.0
    share = "half " if part < 1 else ""
    return peaks[instead] * part, f"{name} products, whose speed is not known, at {share}that of {instead}"


def _instead(dtype: str) -> tuple[str, ...]:
    """Where the speed of a dtype is not known, those that it will not exceed by much."""
    near: Mapping[str, tuple[str, ...]] = {
        "bfloat16": ("float16",),
        "float16": ("bfloat16",),
        "float8": ("bfloat16", "float16"),
        "int8": ("bfloat16", "float16"),
        "int4": ("int8", "bfloat16", "float16"),
    }
    return (*near.get(dtype, ()), "float32", "bfloat16")
