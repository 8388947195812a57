"""Parse arrays of a compiled program, written `f32[8,128]{1,0:T(8,128)}`, and compute their bytes."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

_ARRAY = re.compile(r"([a-z]\w*+)\[([^\]]*+)\](?:\{([^{}]*)\})?")
_SPACE = re.compile(r"S\((\d+)\)")
_HOST, _CHIP = "5", "1"  # memory spaces; the others are parts of the device
_TILED = "T("  # only TPU layouts are tiled; on GPUs space 1 is memory that NCCL has registered
_DIM = re.compile(r"\d{1,18}")
# Types whose names do not end in their width, or that hold two numbers.
_BITS = {"pred": 8, "token": 0, "opaque": 0, "c64": 64, "c128": 128}
_WIDTH = re.compile(r"[a-z]+(\d+)")


@dataclass(frozen=True)
class Shape:
    """One array of an instruction's result.

    Attributes:
        dtype: HLO's name, such as `f32`, `bf16`, `pred`, `s4`.
        dims: sizes on one device.
        is_on_host: whether it is in host memory, not on the device.
        is_on_chip: whether it is in a TPU's vector memory, which the compiler fills, not in the device's memory.
    """

    dtype: str
    dims: tuple[int, ...]
    is_on_host: bool = False
    is_on_chip: bool = False


def read_shapes(text: str) -> tuple[Shape, ...]:
    """Parse the arrays of a shape; for a tuple all of them in order.

    A dynamic dim (`<=8`) counts as its bound: that much memory is allocated for it.

    Examples:
        >>> [str(shape.dims) for shape in read_shapes("(f32[8,128]{1,0:T(8,128)S(1)}, /*index=1*/(s32[<=4], pred[]))")]
        ['(8, 128)', '(4,)', '()']
    """
    return tuple(_shape(*parts) for parts in _ARRAY.findall(text))


def _shape(dtype: str, dims: str, layout: str) -> Shape:
    space = match[1] if (match := _SPACE.search(layout)) else ""
    is_on_chip = space == _CHIP and _TILED in layout
    return Shape(dtype, tuple(map(int, _DIM.findall(dims))), is_on_host=space == _HOST, is_on_chip=is_on_chip)


def dtype_bits(dtype: str) -> int:
    """Return the bits of an element. Types below a byte are packed; unknown types count zero.

    Args:
        dtype: HLO's name for it.

    Examples:
        >>> dtype_bits("bf16"), dtype_bits("f8e4m3fn"), dtype_bits("s4"), dtype_bits("pred")
        (16, 8, 4, 8)
    """
    if dtype in _BITS:
        return _BITS[dtype]
    width = _WIDTH.match(dtype)
    return int(width[1]) if width else 0


def shape_bytes(shape: Shape) -> int:
    """Return the bytes of an array on one device, without padding.

    Examples:
        >>> shape_bytes(Shape("f32", (4, 256))), shape_bytes(Shape("s4", (3,))), shape_bytes(Shape("token", ()))
        (4096, 2, 0)
    """
    return -(-math.prod(shape.dims) * dtype_bits(shape.dtype) // 8)


def total_bytes(shapes: tuple[Shape, ...]) -> int:
    """Return the bytes of several arrays together."""
    return sum(map(shape_bytes, shapes))


def dtype_names(shapes: tuple[Shape, ...]) -> str:
    """Return the types of several arrays, each named once.

    Examples:
        >>> dtype_names((Shape("f32", (2,)), Shape("bf16", ()), Shape("f32", ())))
        'f32+bf16'
    """
    return "+".join(dict.fromkeys(shape.dtype for shape in shapes))
