"""What the products of a language model multiply: the layouts of its recipe with FP8 for its layers."""

from __future__ import annotations

from outlay.layout.fp8 import Scaling, fp8
from outlay.layout.layout import Layout
from outlay.models.transformer.config import Precision

LAYERS = ("params.layers.**.kernel",)
"""The kernels that `lm` multiplies in FP8."""
_SCALINGS: dict[Precision, Scaling] = {"fp8": "current", "fp8-delayed": "delayed", "fp8-blockwise": "blockwise"}


def in_precision(
    layouts: dict[str, Layout], precision: Precision, patterns: tuple[str, ...] = LAYERS
) -> dict[str, Layout]:
    """Return layouts with products of the layers in a precision; embedding and head stay in the model's dtype.

    So do those who publish runs in FP8: the logits of a large vocabulary suffer most from rounding.

    Args:
        layouts: layouts by name.
        precision: the precision.
        patterns: the kernels of the layers.
    """
    rules = Layout([(pattern, fp8(_SCALINGS[precision])) for pattern in patterns])
    return {name: rules + layout for name, layout in layouts.items()}
