"""How fast a target multiplies, by its data sheet or as measured, and ranges of such numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from outlay.core.quantities import counted
from outlay.devices.hardware import Hardware


@dataclass(frozen=True)
class Range:
    """A lower and an upper bound, in seconds or as a share."""

    low: float
    high: float

    def __add__(self, other: Range) -> Range:
        return Range(self.low + other.low, self.high + other.high)

    @property
    def middle(self) -> float:
        """As far from one bound as from the other, as a ratio; where that cannot be, from nothing, halfway.

        >>> Range(1.0, 4.0).middle, Range(0.0, 4.0).middle
        (2.0, 2.0)
        """
        return (self.low * self.high) ** 0.5 if self.low > 0 else self.high / 2


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
        return peaks["bfloat16"] / passes, f"float32 products in {counted(passes, 'pass', 'passes')} of bfloat16"
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
