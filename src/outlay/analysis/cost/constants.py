"""The speeds of hardware: data-sheet numbers, and the fraction of them that is reached, measured or by a few constants.

The constants are in one table, `constants.toml`, each with its source or its fit.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import resources

from outlay.core.quantities import counted
from outlay.devices.hardware import Hardware

Table = Mapping[str, Mapping[str, float]]
"""Constants by name, for each kind of hardware (`gpu`) and each family of chips (`h100`)."""


@dataclass(frozen=True)
class Constants:
    """The constants of one kind of device; `constants.toml` explains them."""

    products: float
    small_product: float
    small_power: float
    kernels: float
    memory: float
    operation: float
    step: float
    slowest: float
    spread: float
    spread_waiting: float
    fragments: float
    runtime: float
    pool: float
    most: float


@functools.cache
def built_in() -> Table:
    """Return the default table of constants."""
    return tomllib.loads((resources.files("outlay.analysis.cost") / "constants.toml").read_text(encoding="utf-8"))


def constants_of(hardware: Hardware, table: Table | None = None) -> Constants:
    """Look up the constants of hardware: by its kind, overridden by its family, or by measurements.

    Args:
        hardware: the kind of device.
        table: the table; None for the built-in one.

    >>> from outlay.devices.hardware import known_hardware
    >>> constants_of(known_hardware()["a100-80gb"]).products
    0.78
    """
    known = built_in() if table is None else table
    measured = hardware.measured
    if measured is not None:
        reached = Constants(**{**known[hardware.kind], **known["measured"]})
        return replace(reached, operation=measured.seconds_per_operation, step=measured.seconds_per_step)
    return Constants(**{**known[hardware.kind], **known.get(hardware.family, {})})


def product_speed(hardware: Hardware, dtype: str) -> tuple[float, str]:
    """Return the FLOP/s of products of a dtype, and a description of the number used.

    Args:
        hardware: the kind of device.
        dtype: the dtype as in `CompiledWork`; `float32-highest` is float32 with `Precision.HIGHEST`.
    """
    peaks = hardware.peak_flops
    if dtype == "float32" and hardware.kind == "gpu" and "tf32" in peaks:
        return peaks["tf32"], "float32 products in tf32, XLA's default precision"
    if dtype.startswith("float32") and hardware.kind == "tpu":
        # Highest precision multiplies three bfloat16 parts of each number, of whose nine products XLA keeps six.
        passes = 6 if dtype == "float32-highest" else 1
        return peaks["bfloat16"] / passes, f"float32 products in {counted(passes, 'pass', 'passes')} of bfloat16"
    name = dtype.removesuffix("-highest")
    if name in peaks:
        return peaks[name], f"{name} products"
    instead = next((other for other in _instead(name) if other in peaks), next(iter(peaks)))
    part = 0.5 if name == "float64" else 1.0
    share = "half " if part < 1 else ""
    return peaks[instead] * part, f"{name} products, of unknown speed, at {share}the speed of {instead}"


def _instead(dtype: str) -> tuple[str, ...]:
    """List stand-ins for a dtype of unknown speed: dtypes that it does not exceed by much."""
    near: Mapping[str, tuple[str, ...]] = {
        "bfloat16": ("float16",),
        "float16": ("bfloat16",),
        "float8": ("bfloat16", "float16"),
        "int8": ("bfloat16", "float16"),
        "int4": ("int8", "bfloat16", "float16"),
    }
    return (*near.get(dtype, ()), "float32", "bfloat16")
