"""The values inside a layer that have names: layouts say where they live and are kept, and `remat` what is kept."""

from __future__ import annotations

import jax
from jax.ad_checkpoint import checkpoint_name

from outlay.core.constrain import name


def named(x: jax.Array, its_name: str) -> jax.Array:
    """A value by the name that layouts and `TransformerConfig.remat` know it by, one of `config.KEPT`."""
    return checkpoint_name(name(x, its_name), its_name)


def residual(x: jax.Array) -> jax.Array:
    """The residual stream (B, T, width) between branches."""
    return named(x, "residual")


def branch_input(x: jax.Array) -> jax.Array:
    """What enters a branch or the head (B, T, width).

    It is split as the stream is first: otherwise the partitioner gathers what it was before it was rounded, in float32.
    """
    return named(name(x, "residual"), "branch_input")


def branch_output(x: jax.Array) -> jax.Array:
    """What a branch or the embedding adds to the stream (B, T, width)."""
    return named(x, "branch_output")
