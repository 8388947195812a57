"""The layouts that any training recipe can be run under."""

from __future__ import annotations

from outlay.layout.layout import Layout
from outlay.layout.placement import replicate
from outlay.layout.strategies import data_parallel, fsdp, zero1, zero2

MIN_SIZE = 2**10
"""Elements below which an array stays whole. Small, so that the layouts differ for small models too."""


def training_layouts() -> dict[str, Layout]:
    """Layouts by name, over one axis `data`: `dp`, `replicated`, `zero1`, `zero2`, `fsdp`.

    They serve any model, so an array none of whose dims divides stays whole, and the plan says so.
    """
    return {
        "dp": data_parallel(),
        # The baseline: every device does all the work on all the data.
        "replicated": Layout([("**", replicate()), ("batch.**", replicate())]),
        "zero1": zero1(min_size=MIN_SIZE, otherwise="replicate") + data_parallel(),
        "zero2": zero2(min_size=MIN_SIZE, otherwise="replicate") + data_parallel(),
        "fsdp": fsdp(min_size=MIN_SIZE, otherwise="replicate") + data_parallel(),
    }
