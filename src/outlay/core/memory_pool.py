"""The share of a GPU's memory that JAX takes for its pool, as the environment of this process says."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

MEM_FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"
"""The variable that says how much of a GPU's memory JAX takes, which every version of JAX reads."""

_VARIABLES = (MEM_FRACTION, "XLA_CLIENT_MEM_FRACTION")
_FRACTION = re.compile(r"0?\.\d+|1(\.0*)?")


class AskedFraction(NamedTuple):
    """A share of the memory, and the variable that asks for it."""

    variable: str
    share: float


def asked_fraction() -> AskedFraction | None:
    """Return the share of a GPU's memory that the environment asks for; None if it leaves that to JAX.

    >>> import os
    >>> os.environ["XLA_CLIENT_MEM_FRACTION"] = ".9"
    >>> asked_fraction()
    AskedFraction(variable='XLA_CLIENT_MEM_FRACTION', share=0.9)
    >>> del os.environ["XLA_CLIENT_MEM_FRACTION"]
    """
    for variable in _VARIABLES:
        if _FRACTION.fullmatch(text := os.environ.get(variable, "")):
            return AskedFraction(variable, float(text))
    return None
