"""The base classes of somas: a membrane that turns current into spikes, and shared mechanisms."""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from outlay.brain.module import Component, State, negative, not_positive
from outlay.brain.traces import Tracer


class Soma(Component, abc.ABC):
    """A model that turns current into spikes. Potentials in the state are relative to rest, and start there."""

    def init(self, key: jax.Array, units: int, *, dt: float, dtype: Any) -> State:
        """Return the initial state: at rest."""
        return {"potential": jnp.zeros(units, dtype)}

    def level_problems(self) -> list[str]:
        """Report a threshold below the reset: a neuron would spike forever after its first spike."""
        threshold: Any = getattr(self, "threshold", None)
        reset: Any = getattr(self, "potential_reset", None)
        if not all(isinstance(level, int | float | tuple) for level in (threshold, reset)):
            return []
        levels = np.atleast_1d(threshold), np.atleast_1d(reset)
        # Of settings by neuron each neuron has its own; a wrong number of them is reported elsewhere.
        if 1 not in map(len, levels) and len(levels[0]) != len(levels[1]):
            return []
        for high, low in zip(*np.broadcast_arrays(*levels), strict=True):
            if high < low:
                what = f"threshold is {high:g} mV, below potential_reset, {low:g} mV"
                return [f"{what}, so each spike would bring the next\na threshold above the reset"]
        return []

    @abc.abstractmethod
    def step(self, state: State, current: jax.Array, *, dt: float) -> tuple[State, jax.Array]:
        """Advance the state by one step of dt ms.

        Args:
            state: the state before the step.
            current: the current into each neuron, (units,), pA.
            dt: the duration of a step, ms.

        Returns:
            The state after the step, and which neurons spiked, bool.
        """


class Membrane(Soma, abc.ABC):
    """A soma that spikes when its membrane equation takes the potential above a threshold, and is then reset."""

    potential_rest: float
    potential_reset: float
    threshold: float

    @abc.abstractmethod
    def charge(self, state: State, current: jax.Array, ready: Any, *, dt: float) -> jax.Array:
        """Apply the membrane equation, and return the potential before a reset, in float32.

        Args:
            state: the state before the step.
            current: the current into each neuron, pA.
            ready: which neurons integrate the current; True for all.
            dt: the duration of a step, ms.
        """

    @property
    def levels(self) -> tuple[float, float]:
        """Return the reset and the threshold in mV, in the equation's scale: above rest."""
        return self.potential_reset - self.potential_rest, self.threshold - self.potential_rest

    def advance(
        self, state: State, charged: jax.Array, potential: jax.Array, spikes: jax.Array, *, dt: float
    ) -> dict[str, jax.Array]:
        """Return the membrane's own state after a step.

        Args:
            state: the state before the step.
            charged: the potential before spikes reset it.
            potential: the potential after the reset.
            spikes: which neurons spiked.
            dt: the duration of a step, ms.
        """
        return {"potential": potential.astype(state["potential"].dtype)}

    def step(self, state: State, current: jax.Array, *, dt: float) -> tuple[State, jax.Array]:
        """Advance the state by one step."""
        reset, threshold = self.levels
        charged = self.charge(state, current, True, dt=dt)
        spikes = charged > threshold
        return self.advance(state, charged, jnp.where(spikes, reset, charged), spikes, dt=dt), spikes


@dataclass(frozen=True)
class Refractory(Membrane, abc.ABC):
    """A mixin for membranes that ignore their input for a refractory time after a spike.

    Attributes:
        cooldown: the refractory time after a spike, ms.
    """

    cooldown: float = field(default=2.0, metadata={"unit": "ms"})

    def init(self, key: jax.Array, units: int, *, dt: float, dtype: Any) -> State:
        """Return the initial state: at rest."""
        # Count whole steps: a floating-point sum of dt would end the cooldown a step early or late.
        cooldown = jnp.full(units, in_steps(self.cooldown, dt), jnp.int32)
        return {**super().init(key, units, dt=dt, dtype=dtype), "refractory": cooldown}

    def step(self, state: State, current: jax.Array, *, dt: float) -> tuple[State, jax.Array]:
        """Advance the state by one step."""
        reset, _ = self.levels
        ready = self.ready(state["refractory"], dt)
        charged = self.charge(state, current, ready, dt=dt)
        spikes = (charged > self.threshold_in(state)) & ready
        after = self.advance(state, charged, jnp.where(spikes, reset, charged), spikes, dt=dt)
        return {**after, "refractory": jnp.where(spikes, 0, state["refractory"] + 1)}, spikes

    def ready(self, refractory: jax.Array, dt: float) -> jax.Array:
        """Return which neurons are ready, given the steps since their last spikes."""
        return refractory > in_steps(self.cooldown, dt)

    def threshold_in(self, state: State) -> Any:
        """Return the threshold of a step in the equation's scale."""
        return self.levels[1]

    def problems(self, *, dt: float) -> list[str]:
        """Report the problems of the membrane, and a cooldown that is negative or no whole number of steps."""
        return [*super().problems(dt=dt), *(negative(self, "cooldown") or off_the_grid(self, dt, "cooldown"))]


@dataclass(frozen=True)
class AdaptiveThreshold(Refractory, abc.ABC):
    """A refractory membrane whose threshold jumps at each spike, and decays back.

    Attributes:
        threshold_tau: the time constant of the threshold, ms.
        threshold_delta: the increase of the threshold per spike, mV.
    """

    threshold_tau: float = field(default=20.0, metadata={"unit": "ms"})
    threshold_delta: float = field(default=100.0, metadata={"unit": "mV"})

    def init(self, key: jax.Array, units: int, *, dt: float, dtype: Any) -> State:
        """Return the initial state: at rest, with the threshold at its base."""
        threshold = self._threshold_tracer().init((units,), dtype)
        return {**super().init(key, units, dt=dt, dtype=dtype), "threshold": threshold}

    def step(self, state: State, current: jax.Array, *, dt: float) -> tuple[State, jax.Array]:
        """Advance the state by one step."""
        after, spikes = super().step(state, current, dt=dt)
        return {**after, "threshold": self._threshold_tracer().step(state["threshold"], spikes, dt=dt)}, spikes

    def threshold_in(self, state: State) -> jax.Array:
        """Return the threshold after all earlier spikes."""
        return state["threshold"]

    def problems(self, *, dt: float) -> list[str]:
        """Report the problems of the refractory membrane, and a time constant that is not positive."""
        return [*super().problems(dt=dt), *not_positive(self, "threshold_tau")]

    def _threshold_tracer(self) -> Tracer:
        return Tracer(self.threshold_tau, self.threshold_delta, self.levels[1])


def in_steps(duration: Any, dt: float) -> Any:
    """Round a duration, or an array of them, to steps, up to the largest number that the counter can hold."""
    if isinstance(duration, int | float):
        return round(min(duration / dt, 2**31 - 1))
    # Of float32 the largest number below 2**31.
    return jnp.round(jnp.minimum(duration / dt, 2.0**31 - 128)).astype(jnp.int32)


def off_the_grid(settings: Any, dt: float, *names: str) -> list[str]:
    """Return a sentence for each of these times that is not a whole number of steps."""
    wrong = []
    for name in names:
        value = getattr(settings, name)
        for time in value if isinstance(value, tuple) else (value,):
            steps = time / dt
            # Relative: the rounding of a quotient grows with it.
            if abs(steps - round(steps)) > 1e-6 * max(1.0, steps):
                wrong.append(
                    f"{name} is {time:g} ms, {steps:g} steps of dt = {dt:g} ms\n"
                    f"a whole number of steps, such as {math.ceil(steps) * dt:g} ms"
                )
                break
    return wrong
