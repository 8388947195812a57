"""Round arrays to 8 bits with scales that are powers of two: for a whole array, given beforehand, or for each block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from outlay.core.primitives import SATURATE, SCALE
from outlay.layout.fp8 import Float8

BLOCK = 128
LARGEST = "outlay: largest entry"
"""The name of a tensor's largest entry, which a backward pass that recomputes the tensor need not find again."""
_DTYPES = {"e4m3": jnp.float8_e4m3fn, "e5m2": jnp.float8_e5m2}
_TOP = {"e4m3": 8, "e5m2": 15}
"""The exponent of the largest number of a format; both have 1.75 in front of it."""
_MANTISSA, _BELOW_MOST = 23, 0x1FFFFF
"""Bits of a float32's mantissa, and what carries into its exponent when added to more than 1.75."""
_BIAS, _MOST = 127, 60
"""A scale goes from 2**-60 to 2**60, so that the product of two is a number."""
SCALES = 2.0 ** np.arange(-_MOST, _MOST + 1, dtype=np.float32)
"""All scales."""


class Narrow(NamedTuple):
    """An array in 8 bits.

    Attributes:
        values: its entries, each divided by its scale.
        scale: the scale of all, or an array of the same rank that broadcasts over blocks (see `widened`).
    """

    values: Any
    scale: Any


def narrowed(x: jax.Array, form: Float8) -> Narrow:
    """Round an array with one scale, the smallest power of two with which its largest entry fits.

    An entry that is no number stays none.

    >>> narrowed(jnp.array([1.0, 450.0]), "e4m3")
    Narrow(values=Array([0.5, 224], dtype=float8_e4m3fn), scale=Array(2., dtype=float32))
    """
    largest = checkpoint_name(_largest(x), LARGEST)
    scale, inverse = _scales(largest, form)
    return Narrow((x.astype(jnp.float32) * inverse).astype(_DTYPES[form]), scale)


def narrowed_by(x: jax.Array, scale: jax.Array, form: Float8) -> Narrow:
    """Round an array with a scale that was made without it: what it has no room for becomes the largest number.

    >>> narrowed_by(jnp.array([1.0, 450.0]), jnp.float32(0.5), "e4m3").values
    Array([2, 448], dtype=float8_e4m3fn)
    """
    most = float(jnp.finfo(_DTYPES[form]).max)
    return Narrow(_saturated(x.astype(jnp.float32) * (1 / scale), most).astype(_DTYPES[form]), scale)


def scale_tally(x: jax.Array, form: Float8) -> jax.Array:
    """Return zeros with a one at the place in `SCALES` of the scale that an array has by itself.

    All are zero for an array of zeros, and for one that holds something else than numbers.
    """
    largest = checkpoint_name(_largest(x), LARGEST)
    is_number = (largest > 0) & jnp.isfinite(largest)
    return jnp.where(is_number & (_scales(largest, form)[0] == SCALES), 1.0, 0.0)


def rounded_in_blocks(x: jax.Array, form: Float8, dims: Sequence[int]) -> jax.Array:
    """Round an array with a scale for each block: 128 entries along some dims, and 1 along all others.

    Args:
        x: the array.
        form: the format.
        dims: along which dims a block has more than one entry; the last block of a dim may have fewer.

    Returns:
        The rounded numbers in the dtype of the array, which has room for them.
    """
    sizes = [-(-size // BLOCK) * BLOCK if dim in dims else size for dim, size in enumerate(x.shape)]
    padded = jnp.pad(x, [(0, size - old) for size, old in zip(sizes, x.shape, strict=True)])
    parts = [part for dim, size in enumerate(sizes) for part in ((size // BLOCK, BLOCK) if dim in dims else (size, 1))]
    blocks = padded.reshape(parts)
    inside = tuple(range(1, blocks.ndim, 2))
    scale, inverse = _scales(jnp.max(jnp.abs(blocks), axis=inside, keepdims=True).astype(jnp.float32), form)
    rounded = (blocks.astype(jnp.float32) * inverse).astype(_DTYPES[form]).astype(jnp.float32) * scale
    return jax.lax.slice(rounded.reshape(sizes), [0] * x.ndim, x.shape).astype(x.dtype)


def _largest_entry(x: jax.Array) -> jax.Array:
    return jnp.max(jnp.abs(x)).astype(jnp.float32)


_largest_entry.__name__ = SCALE
_largest = jax.jit(_largest_entry)


def _within(x: jax.Array, most: float) -> jax.Array:
    return jax.lax.clamp(np.float32(-most), x, np.float32(most))


_within.__name__ = SATURATE
_saturated = jax.jit(_within, static_argnums=1)


def _scales(largest: jax.Array, form: Float8) -> tuple[jax.Array, jax.Array]:
    """Return scales and their inverses, made of bits: exact, and the same on any hardware."""
    bits = jax.lax.bitcast_convert_type(largest, jnp.int32)
    exponent = ((bits + _BELOW_MOST) >> _MANTISSA) - _TOP[form]
    exponent = jnp.clip(exponent, _BIAS - _MOST, _BIAS + _MOST)
    made = (exponent << _MANTISSA, (2 * _BIAS - exponent) << _MANTISSA)
    scale, inverse = (jax.lax.bitcast_convert_type(one, jnp.float32) for one in made)
    return scale, inverse
