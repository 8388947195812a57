"""What hardware reaches of its data sheet: few constants, in one table, each with its source or its fit."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import resources

from outlay.devices.hardware import Hardware

Table = Mapping[str, Mapping[str, float]]
"""Constants by name, by kind of hardware (`gpu`) and by the beginning of its key (`h100`)."""


@dataclass(frozen=True)
class Constants:
    """The constants of one kind of device; what they mean stands in `constants.toml`."""

    products: float
    small_product: float
    small_power: float
    kernels: float
    memory: float
    operation: float
    step: float
    host: float
    spread: float
    fragments: float
    runtime: float
    pool: float
    most: float


@functools.cache
def built_in() -> Table:
    """The table that prices are made with unless another one is passed."""
    return tomllib.loads((resources.files("outlay.analysis.cost") / "constants.toml").read_text(encoding="utf-8"))


def constants_of(hardware: Hardware, table: Table | None = None) -> Constants:
    """The constants of some hardware: those of its kind, changed by those of its key; of measured hardware its own.

    Args:
        hardware: the kind of device.
        table: the table; the one that is built in if None.

    >>> from outlay.devices.hardware import known_hardware
    >>> constants_of(known_hardware()["a100-80gb"]).host
    25000000000.0
    """
    known = built_in() if table is None else table
    measured = hardware.measured
    if measured is not None:
        found = Constants(**{**known[hardware.kind], **known["measured"]})
        return replace(found, operation=measured.seconds_per_operation, step=measured.seconds_per_step)
    own = max((key for key in known if hardware.key.startswith(key)), key=len, default="")
    return Constants(**{**known[hardware.kind], **known.get(own, {})})
