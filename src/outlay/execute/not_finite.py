"""When a part first had a NaN or an infinity."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

NEVER = -1
_BITS = {2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint64}


def first_seen(before: jax.Array, own: Any, outputs: Any, step: jax.Array) -> jax.Array:
    """The number of the step at which a part was first not finite, or -1, after one more step.

    Looked at are outputs, and leaves of at most one dim; a pass over a kernel in every step would cost too much.
    """
    small = [leaf for leaf in jax.tree.leaves((own, outputs)) if jnp.ndim(leaf) <= 1]
    rest = [leaf for leaf in jax.tree.leaves(outputs) if jnp.ndim(leaf) > 1]
    return _seen(before, [*small, *rest], step)


def seen_at_the_end(before: jax.Array, own: Any, num_steps: int) -> jax.Array:
    """The same after the last step, when leaves of more dims are looked at too."""
    return _seen(before, [leaf for leaf in jax.tree.leaves(own) if jnp.ndim(leaf) > 1], num_steps - 1)


def over_devices(first: jax.Array, axis: str) -> jax.Array:
    """The first step at which any device saw something, where each holds some rows of a part."""
    latest = jnp.iinfo(jnp.int32).max
    found = jax.lax.pmin(jnp.where(first == NEVER, latest, first), axis)
    return jnp.where(found == latest, NEVER, found)


def _seen(before: jax.Array, leaves: list[Any], step: Any) -> jax.Array:
    floats = [leaf for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.size]
    if not floats:
        return before
    bad = functools.reduce(jnp.logical_or, map(_is_bad, floats))
    return jnp.where((before == NEVER) & bad, jnp.asarray(step, jnp.int32), before)


def _is_bad(leaf: jax.Array) -> jax.Array:
    """Whether an entry is not finite: the largest of the bits without the sign, since integers are compared fast."""
    unsigned = _BITS[leaf.dtype.itemsize]
    infinity = jax.lax.bitcast_convert_type(jnp.asarray(jnp.inf, leaf.dtype), unsigned)
    magnitude = jax.lax.bitcast_convert_type(leaf, unsigned) & jnp.asarray(jnp.iinfo(unsigned).max >> 1, unsigned)
    return magnitude.max() >= infinity
