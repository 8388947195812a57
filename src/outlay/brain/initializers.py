"""What kernels are at first.

Every neuron draws its own row from the key and from its number alone, so its row is the same wherever the row is made.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from outlay.brain.registry import register


class Initializer(abc.ABC):
    """The values of a kernel at first."""

    @abc.abstractmethod
    def __call__(self, key: jax.Array, shape: tuple[int, int], dtype: Any) -> jax.Array:
        """The values.

        Args:
            key: the PRNG key.
            shape: post-synaptic neurons, pre-synaptic neurons.
            dtype: of the values.
        """


@register("constant", kind="initializer")
@dataclass(frozen=True)
class Constant(Initializer):
    """The same value everywhere.

    Attributes:
        value: the value.
    """

    value: float = 1.0

    def __call__(self, key: jax.Array, shape: tuple[int, int], dtype: Any) -> jax.Array:
        """The value, everywhere."""
        return jnp.full(shape, self.value, dtype)


@register("uniform", kind="initializer")
@dataclass(frozen=True)
class Uniform(Initializer):
    """Uniform draws: scale × [0, 1).

    Attributes:
        scale: what the draws are multiplied with.
    """

    scale: float = 1.0

    def __call__(self, key: jax.Array, shape: tuple[int, int], dtype: Any) -> jax.Array:
        """The draws."""
        return (self.scale * by_neuron(jax.random.uniform, key, shape)).astype(dtype)


@register("sparse_uniform", kind="initializer")
@dataclass(frozen=True)
class SparseUniform(Initializer):
    """Uniform draws of which some are kept: scale × [0, 1) with probability `density`, else 0.

    Attributes:
        scale: what the draws are multiplied with.
        density: the share of values that are not 0, from 0 to 1.
    """

    scale: float = 1.0
    density: float = 0.2

    def __call__(self, key: jax.Array, shape: tuple[int, int], dtype: Any) -> jax.Array:
        """The draws."""
        return (self.scale * _sparse(key, shape, self.density)).astype(dtype)


@register("normalized_sparse_uniform", kind="initializer")
@dataclass(frozen=True)
class NormalizedSparseUniform(Initializer):
    """Uniform draws of which some are kept, divided by what they sum to: [0, 1) with probability `density`, else 0.

    Attributes:
        scale: what the values sum to along `norm_axes`; nothing but zeros stays zeros.
        density: the share of values that are not 0, from 0 to 1.
        norm_axes: the dims along which they sum to `scale`: 0 post-synaptic, 1 pre-synaptic neurons.
    """

    scale: float = 1.0
    density: float = 0.2
    norm_axes: tuple[int, ...] = (0,)

    def __call__(self, key: jax.Array, shape: tuple[int, int], dtype: Any) -> jax.Array:
        """The draws."""
        kept = _sparse(key, shape, self.density)
        total = kept.sum(tuple(self.norm_axes), keepdims=True)
        return (self.scale * kept / jnp.where(total > 0, total, 1)).astype(dtype)


def by_neuron(draw: Any, key: jax.Array, shape: tuple[int, int]) -> jax.Array:
    """One row of draws for each neuron, `draw(key, shape)`, from the key and the neuron's number."""
    units, num_inputs = shape
    return jax.vmap(lambda unit: draw(jax.random.fold_in(key, unit), (num_inputs,)))(jnp.arange(units))


def _sparse(key: jax.Array, shape: tuple[int, int], density: float) -> jax.Array:
    values, kept = jax.random.split(key)
    draws = by_neuron(jax.random.uniform, values, shape)
    return jnp.where(by_neuron(jax.random.uniform, kept, shape) < density, draws, 0)
