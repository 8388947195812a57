"""Shapes as HLO writes them: `f32[8,128]{1,0:T(8,128)}`, `(f32[], (s32[<=4], token[]))`."""

from __future__ import annotations

import re

from outlay.analysis.hlo.hlo_module import Shape

_ARRAY = re.compile(r"([a-z]\w*+)\[([^\]]*+)\](?:\{[^{}]*?S\((\d+)\)[^{}]*\})?")
_HOST = "5"  # the memory space of the host; others are parts of the device
_DIM = re.compile(r"\d{1,18}")


def read_shapes(text: str) -> tuple[Shape, ...]:
    """The arrays of a shape, of a tuple all of them in order.

    A dynamic dim (`<=8`) counts as its bound: that much memory is set aside for it.

    Examples:
        >>> [str(shape.dims) for shape in read_shapes("(f32[8,128]{1,0:T(8,128)S(1)}, /*index=1*/(s32[<=4], pred[]))")]
        ['(8, 128)', '(4,)', '()']
    """
    return tuple(
        Shape(dtype, tuple(map(int, _DIM.findall(dims))), is_on_host=space == _HOST)
        for dtype, dims, space in _ARRAY.findall(text)
    )
