"""Synapses, and the sum over what arrives."""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp

from outlay.brain.component import Component, State
from outlay.brain.delays.delays import Arrivals
from outlay.brain.initializers import Initializer, NormalizedSparseUniform
from outlay.brain.registry import register


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


LANES = 16
MOST_BLOCKS = 64


def sum_rows(values: Callable[[slice], jax.Array], num_columns: int) -> jax.Array:
    """The sum of each row of a matrix, bit for bit the same whatever the other rows are.

    XLA chooses the order of a reduction by the size of the whole array, so that neurons computed in smaller groups
    would sum in another order. Here blocks of columns are added one after the other, element by element; then the lanes
    that are left are added in halves. Each block is made where it is added: a matrix of all would be written to memory,
    and read back.

    Args:
        values: some columns of the matrix, (rows, those columns).
        num_columns: how many it has.
    """
    lanes = LANES
    while num_columns > MOST_BLOCKS * lanes:
        lanes *= 2
    total = _padded(values(slice(0, min(lanes, num_columns))), lanes)
    for start in range(lanes, num_columns, lanes):
        total = total + _padded(values(slice(start, min(start + lanes, num_columns))), lanes)
    # Else everything that reads the sum would compute it anew.
    total = jax.lax.optimization_barrier(total)
    while total.shape[1] > 1:
        half = total.shape[1] // 2
        total = total[:, :half] + total[:, half:]
    return total[:, 0]


def _padded(block: jax.Array, lanes: int) -> jax.Array:
    """A block with zeros in the lanes that it lacks."""
    return jnp.pad(block, ((0, 0), (0, lanes - block.shape[1])))


@register("linear", kind="synapses")
@dataclass(frozen=True)
class LinearSynapses(Synapses):
    """Current in the step in which a spike arrives.

    In every step::

        current[i] = Σ_j kernel[i,j] value[i,j],    value = +1, -1 from an inhibitory neuron, or 0

    Source: `LinearSynapses` of Spark (Nogarx/Spark).

    State: `kernel` (post, pre), pA.

    Attributes:
        kernel: the kernel at first, pA.
    """

    def step(self, state: State, arrivals: Arrivals, *, dt: float) -> tuple[State, jax.Array]:
        """The current of this step."""
        return state, arriving_current(state["kernel"], arrivals).astype(state["kernel"].dtype)
