"""What the arrays of a compiled program weigh."""

from __future__ import annotations

import math
import re

from outlay.analysis.hlo.hlo_module import Shape

# Types whose names do not end in their width, or that hold two numbers.
_BITS = {"pred": 8, "token": 0, "opaque": 0, "c64": 64, "c128": 128}
_WIDTH = re.compile(r"[a-z]+(\d+)")


def dtype_bits(dtype: str) -> int:
    """Bits an element takes. Types below a byte are packed; an unknown one takes none.

    Args:
        dtype: HLO's name of it.

    Examples:
        >>> dtype_bits("bf16"), dtype_bits("f8e4m3fn"), dtype_bits("s4"), dtype_bits("pred")
        (16, 8, 4, 8)
    """
    if dtype in _BITS:
        return _BITS[dtype]
    width = _WIDTH.match(dtype)
    return int(width[1]) if width else 0


def shape_bytes(shape: Shape) -> int:
    """Bytes of an array on one device, padding not counted.

    Examples:
        >>> shape_bytes(Shape("f32", (4, 256))), shape_bytes(Shape("s4", (3,))), shape_bytes(Shape("token", ()))
        (4096, 2, 0)
    """
    return -(-math.prod(shape.dims) * dtype_bits(shape.dtype) // 8)


def total_bytes(shapes: tuple[Shape, ...]) -> int:
    """Bytes of several arrays together."""
    return sum(map(shape_bytes, shapes))


def dtype_names(shapes: tuple[Shape, ...]) -> str:
    """The types of several arrays, each named once.

    Examples:
        >>> dtype_names((Shape("f32", (2,)), Shape("bf16", ()), Shape("f32", ())))
        'f32+bf16'
    """
    return "+".join(dict.fromkeys(shape.dtype for shape in shapes))
