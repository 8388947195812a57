"""Synapses, and the sum over what arrives."""

from __future__ import annotations

import abc
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp

from outlay.brain.component import Component, State
from outlay.brain.delays.base import Arrivals
from outlay.brain.initializers import Initializer, NormalizedSparseUniform
from outlay.brain.synapses.row_sums import sum_rows


@dataclass(frozen=True)
class Synapses(Component, abc.ABC):
    """A kernel, and the current it makes of the spikes that arrive.

    Attributes:
        kernel: the kernel at first, pA.
    """

    kernel: Initializer = field(default_factory=NormalizedSparseUniform, metadata={"unit": "pA"})

    def init(self, key: jax.Array, units: int, num_inputs: int, *, dt: float, dtype) -> State:
        """The kernel, (post, pre)."""
        return {"kernel": self.kernel(key, (units, num_inputs), dtype)}

    @abc.abstractmethod
    def step(self, state: State, arrivals: Arrivals, *, dt: float) -> tuple[State, jax.Array]:
        """The state after a step, and the current into each post neuron, pA."""


def arriving_current(kernel: jax.Array, arrivals: Arrivals) -> jax.Array:
    """What the spikes that arrive bring to each post neuron: Σ_j kernel[i,j] value[i,j], in float32."""
    # Else every pair would look at the sign of its pre neuron anew.
    sign = jax.lax.optimization_barrier(jnp.where(arrivals.inhibitory, -1.0, 1.0).astype(jnp.float32))

    def brought(pre: slice) -> jax.Array:
        return jnp.where(arrivals.arrived[..., pre], kernel[:, pre].astype(jnp.float32), 0) * sign[None, pre]

    return sum_rows(brought, kernel.shape[1])
