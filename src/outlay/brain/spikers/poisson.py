"""A spiker whose units draw: a spike or none, by chance, at a rate that grows with the signal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from outlay.brain.module import Module, State
from outlay.brain.port import Port, Shape
from outlay.brain.registry import register
from outlay.brain.spikers.linear import MS_PER_S
from outlay.brain.spikers.spiker_settings import not_positive


@register("poisson_spiker")
@dataclass(frozen=True)
class PoissonSpiker(Module):
    """One unit for each number of the signal, which spikes by chance; a signal of 1 makes it spike at `max_freq`.

    With x the signal, in every step::

        P(spike) = x dt max_freq / 1000

    From Spark (Nogarx/Spark), `PoissonSpiker`. What unit i draws in step k depends on the module's key, on i and on k
    alone: not on how many units there are, nor on where they run.

    Ports: `signal` (any shape, 0 to 1) -> `spikes` (the same shape).

    State: `key` (2 words of a threefry key) and `step`, how many there were.

    Attributes:
        max_freq: rate at a signal of 1, Hz.
    """

    max_freq: float = field(default=100.0, metadata={"unit": "Hz"})

    def inputs(self) -> Mapping[str, Port]:
        """It reads `signal`."""
        return {"signal": Port("values")}

    def outputs(self, shapes: Mapping[str, Shape]) -> Mapping[str, Port]:
        """It writes `spikes`."""
        return {"spikes": Port("spikes", self.cells(shapes["signal"]))}

    def init(self, key: jax.Array, shapes: Mapping[str, Shape], *, dt: float, dtype: Any) -> State:
        """Its key as plain words, which any device, file or process can hold, and no step yet."""
        return {"key": jax.random.key_data(key), "step": jnp.zeros((), jnp.uint32)}

    def step(self, state: State, inputs: Mapping[str, jax.Array], *, dt: float) -> tuple[State, dict[str, jax.Array]]:
        """One step of dt ms."""
        drive = self.drive(inputs["signal"])
        drawn = _uniform_by_unit(state["key"], state["step"], drive.size).reshape(drive.shape)
        spikes = drawn < drive.astype(jnp.float32) * (dt * self.max_freq / MS_PER_S)
        return {**state, "step": state["step"] + 1}, {"spikes": spikes.astype(jnp.int8)}

    def problems(self, *, dt: float) -> list[str]:
        """A rate that is not positive, or that would need more than one spike a step."""
        wrong = not_positive(self, "max_freq")
        if not wrong and dt * self.max_freq > MS_PER_S:
            wrong.append(
                f"max_freq is {self.max_freq:g} Hz, and one spike in each step of {dt:g} ms is {MS_PER_S / dt:g} Hz\n"
                "a lower max_freq or a smaller dt"
            )
        return wrong

    def cells(self, signal: Shape) -> Shape:
        """The shape of the units for a signal."""
        return tuple(signal)

    def drive(self, signal: jax.Array) -> jax.Array:
        """The rate of each unit, as a part of `max_freq`."""
        return signal


def _uniform_by_unit(words: jax.Array, step: jax.Array, num_units: int) -> jax.Array:
    """A number in [0, 1) for each unit in this step."""
    key = jax.random.fold_in(jax.random.wrap_key_data(words, impl="threefry2x32"), step)

    def draw(unit: jax.Array) -> jax.Array:
        return jax.random.uniform(jax.random.fold_in(key, unit))

    return jax.vmap(draw)(jnp.arange(num_units, dtype=jnp.uint32))
