"""Synapses whose current lasts one step."""

from __future__ import annotations

from dataclasses import dataclass

import jax

from outlay.brain.component import State
from outlay.brain.delays.base import Arrivals
from outlay.brain.registry import register
from outlay.brain.synapses.base import Synapses, arriving_current


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
