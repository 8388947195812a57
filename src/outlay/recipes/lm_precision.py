"""What the products of a language model multiply: the layouts of the recipe `lm` with FP8 for its layers."""

from __future__ import annotations

from typing import Literal

from outlay.layout.layout import Layout

Precision = Literal["fp8", "fp8-blockwise"]


def in_precision(layouts: dict[str, Layout], precision: Precision | None) -> dict[str, Layout]:
    """Return layouts with products of the layers in a precision; embedding and head stay in the model's dtype.

    So do those who publish runs in FP8: the logits of a large vocabulary suffer most from rounding.

    Args:
        layouts: layouts by name.
        precision: the precision; None for the model's dtype.
    """
    if precision is None:
        return layouts
    from outlay.layout.fp8 import fp8

    rules = Layout([("params.layers.**.kernel", fp8("blockwise" if precision == "fp8-blockwise" else "current"))])
    return {name: rules + layout for name, layout in layouts.items()}
