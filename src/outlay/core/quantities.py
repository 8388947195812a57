"""Quantities: what an array costs in bytes, and how every message, table and page writes counts, bytes and seconds."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any


def counted(num: int, one: str, many: str | None = None) -> str:
    """A number of things, with the word for one of them or for several (by default, one with an s).

    >>> counted(1, "leaf", "leaves"), counted(20_000, "leaf", "leaves"), counted(0, "problem")
    ('1 leaf', '20,000 leaves', '0 problems')
    """
    return f"{num:,} {one if num == 1 else many or one + 's'}"


def how_often(runs: int) -> str:
    """A number of times in words.

    >>> how_often(1), how_often(2), how_often(4800)
    ('once', 'twice', '4,800 times')
    """
    return {1: "once", 2: "twice"}.get(runs, f"{runs:,} times")


def format_bytes(count: float) -> str:
    """Bytes for people, in binary units.

    >>> format_bytes(512), format_bytes(1628200), format_bytes(-3 * 2**30)
    ('512 B', '1.6 MiB', '-3.0 GiB')
    """
    size = float(abs(count))
    sign = "-" if count < 0 else ""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        digits = 0 if unit == "B" else 1
        if round(size, digits) < 1024 or unit == "TiB":
            return f"{sign}{size:.{digits}f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")


def format_seconds(seconds: float) -> str:
    """A time for people.

    >>> format_seconds(0), format_seconds(3.21e-5), format_seconds(0.0125), format_seconds(83.0)
    ('0 s', '32.1 µs', '12.5 ms', '83 s')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= 0.9995 * size or (unit == "µs" and seconds):
            return f"{seconds / size:.3g} {unit}"
    return "0 s"


def format_flops(count: float) -> str:
    """Floating-point operations for people.

    >>> format_flops(738e6), format_flops(2.5e15)
    ('738 MFLOP', '2.5 PFLOP')
    """
    for unit in ("", "k", "M", "G", "T", "P"):
        if abs(count) < 999.5 or unit == "P":
            return f"{count:.3g} {unit}FLOP"
        count /= 1000
    raise AssertionError("unreachable")


def num_bytes(shape: Sequence[int], dtype: Any) -> int:
    """Bytes of an array; sub-byte dtypes such as int4 and float4 count their bits, rounded up to whole bytes.

    Typed PRNG keys count the bytes of their key data.

    >>> num_bytes((4, 8), "float32")
    128
    >>> num_bytes((3,), jnp.int4)
    2
    """
    return -(-math.prod(shape) * num_bits(dtype) // 8)


def is_count(value: Any) -> bool:
    """Whether a value that was read from a file is a whole number from 0 on; JSON's `true` is none."""
    return type(value) is int and value >= 0


@functools.lru_cache(maxsize=256)
def num_bits(dtype: Any) -> int:
    """Bits of one element of a dtype (a dtype object, a scalar type or a dtype's name)."""
    if str(dtype).startswith("key<"):  # typed PRNG keys are not numpy dtypes
        return _KEY_BITS[str(dtype)]
    import jax.numpy as jnp  # here, since the launcher counts processes without JAX

    dtype = jnp.dtype(dtype)
    if dtype == jnp.bool_:
        return 8
    if jnp.issubdtype(dtype, jnp.integer):
        return jnp.iinfo(dtype).bits
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.finfo(dtype).bits
    return 8 * dtype.itemsize


_KEY_BITS = {"key<fry>": 64, "key<rbg>": 128, "key<urbg>": 128}
"""Key data of JAX's PRNG implementations: threefry2x32, rbg, unsafe_rbg."""
