"""What a soma is."""

from __future__ import annotations

import abc
from typing import Any

import jax
import jax.numpy as jnp

from outlay.brain.component import Component, State


class Soma(Component, abc.ABC):
    """A membrane: current in, spikes out. Potentials in the state are relative to rest, and start there."""

    def init(self, key: jax.Array, units: int, *, dt: float, dtype: Any) -> State:
        """The state before the first step: at rest."""
        return {"potential": jnp.zeros(units, dtype)}

    @abc.abstractmethod
    def step(self, state: State, current: jax.Array, *, dt: float) -> tuple[State, jax.Array]:
        """One step of dt ms.

        Args:
            state: the state before it.
            current: into each neuron, (units,), pA.
            dt: the time of one step, ms.

        Returns:
            The state after it, and which neurons spiked, bool.
        """


def in_steps(duration: float, dt: float) -> int:
    """A duration as the nearest number of steps."""
    return round(duration / dt)
