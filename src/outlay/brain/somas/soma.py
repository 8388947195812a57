"""What a soma is."""

from __future__ import annotations

import abc
from typing import Any

import jax
import jax.numpy as jnp

from outlay.brain.module import Component, State


class Soma(Component, abc.ABC):
    """A membrane: current in, spikes out. Potentials in the state are relative to rest, and start there."""

    def init(self, key: jax.Array, units: int, *, dt: float, dtype: Any) -> State:
        """The state before the first step: at rest."""
        return {"potential": jnp.zeros(units, dtype)}

    def level_problems(self) -> list[str]:
        """A threshold below the reset: a neuron that has spiked would never stop."""
        threshold, reset = getattr(self, "threshold", None), getattr(self, "potential_reset", None)
        if isinstance(threshold, int | float) and isinstance(reset, int | float) and threshold < reset:
            what = f"threshold is {threshold:g} mV, below potential_reset, {reset:g} mV"
            return [f"{what}, so each spike would bring the next\na threshold above the reset"]
        return []

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
    """A duration as the nearest number of steps that can be counted."""
    return round(min(duration / dt, 2**31 - 1))
