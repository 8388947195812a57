"""Read the types and the constants that the text of a compiled program spells."""

from __future__ import annotations

import re

import jax.numpy as jnp
import numpy as np

from outlay.analysis.hlo.hlo_module import Shape

_DTYPES = {
    "pred": "bool",
    **{f"s{bits}": f"int{bits}" for bits in (2, 4, 8, 16, 32, 64)},
    **{f"u{bits}": f"uint{bits}" for bits in (2, 4, 8, 16, 32, 64)},
    **{
        "f16": "float16",
        "bf16": "bfloat16",
        "f32": "float32",
        "f64": "float64",
        "c64": "complex64",
        "c128": "complex128",
    },
    **{f"f8{form}": f"float8_{form}" for form in ("e4m3", "e4m3fn", "e4m3b11fnuz", "e4m3fnuz", "e5m2", "e5m2fnuz")},
    **{"f8e3m4": "float8_e3m4", "f8e8m0fnu": "float8_e8m0fnu", "f4e2m1fn": "float4_e2m1fn"},
}
_ENTRY = re.compile(r"\(([^,()]+),([^,()]+)\)|[^\s,{}()]+")
_COMMENT = re.compile(r"/\*[^*]*+\*/")
_PAYLOAD = re.compile(r"nan\([^)]*\)")


def dtype_of(name: str) -> np.dtype | None:
    """Return the type that HLO calls so; None if NumPy and JAX have none like it.

    Examples:
        >>> dtype_of("pred"), dtype_of("f8e4m3fn"), dtype_of("token")
        (dtype('bool'), dtype(float8_e4m3fn), None)
    """
    known = getattr(jnp, _DTYPES.get(name, ""), None) if name != "pred" else bool
    return None if known is None else jnp.dtype(known)


def read_literal(text: str, shape: Shape) -> np.ndarray:
    """Return the constant that a text spells.

    Args:
        text: what stands in the parentheses of `constant`, such as `{ { 1, 2 }, { 3, 4 } }` or `-inf`.
        shape: the constant's type and sizes.

    Raises:
        ValueError: the text spells another number of entries, or was shortened to `{...}`.

    Examples:
        >>> read_literal("{ {1, -2}, {3, nan} }", Shape("f32", (2, 2)))
        array([[ 1., -2.],
               [ 3., nan]], dtype=float32)
        >>> read_literal("{true, false}", Shape("pred", (2,)))
        array([ True, False])
    """
    dtype = dtype_of(shape.dtype)
    if dtype is None:
        raise ValueError(f"constants of type {shape.dtype} have no meaning here")
    text = _PAYLOAD.sub("nan", _COMMENT.sub("", text))
    entries = [_entry(match, shape.dtype) for match in _ENTRY.finditer(text)]
    if len(entries) != int(np.prod(shape.dims)):
        raise ValueError(f"a constant of {shape.dtype}{list(shape.dims)} is spelled {text[:40]!r}")
    return np.array(entries, dtype).reshape(shape.dims)


def _entry(match: re.Match[str], dtype: str) -> bool | int | float | complex:
    if match[1] is not None:
        return complex(float(match[1]), float(match[2]))
    if dtype == "pred":
        return match[0] in ("true", "1")
    if dtype[0] in "su" and dtype[1:].isdecimal():
        return int(match[0])
    return float(match[0])
