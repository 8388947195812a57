"""Shapes as HLO writes them: `f32[8,128]{1,0:T(8,128)}`, `(f32[], (s32[<=4], token[]))`."""

from __future__ import annotations

import re

from outlay.analysis.hlo.hlo_module import Shape

_ARRAY = re.compile(r"([a-z]\w*+)\[([^\]]*+)\](?:\{([^{}]*)\})?")
_SPACE = re.compile(r"S\((\d+)\)")
_HOST, _CHIP = "5", "1"  # memory spaces; the others are parts of the device
_TILED = "T("  # as on TPUs; on GPUs space 1 is memory that NCCL has registered
_DIM = re.compile(r"\d{1,18}")


def read_shapes(text: str) -> tuple[Shape, ...]:
    """The arrays of a shape, of a tuple all of them in order.

    A dynamic dim (`<=8`) counts as its bound: that much memory is set aside for it.

    Examples:
        >>> [str(shape.dims) for shape in read_shapes("(f32[8,128]{1,0:T(8,128)S(1)}, /*index=1*/(s32[<=4], pred[]))")]
        ['(8, 128)', '(4,)', '()']
    """
    return tuple(_shape(*found) for found in _ARRAY.findall(text))


def _shape(dtype: str, dims: str, layout: str) -> Shape:
    space = found[1] if (found := _SPACE.search(layout)) else ""
    on_chip = space == _CHIP and _TILED in layout
    return Shape(dtype, tuple(map(int, _DIM.findall(dims))), is_on_host=space == _HOST, is_on_chip=on_chip)
