"""Encoders from numbers to spikes, with one unit per number or a row of units tuned to different values."""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from outlay.brain.initializers import by_neuron
from outlay.brain.module import MS_PER_S, BrainError, Module, Port, Shape, State, negative, not_positive
from outlay.brain.registry import register
from outlay.brain.rounding import is_narrow

Each = float | tuple[float, ...]
"""One value for all numbers of the signal, or one for each."""


@dataclass(frozen=True)
class Encoder(Module, abc.ABC):
    """Units whose firing rate grows with their part of a signal."""

    def inputs(self) -> Mapping[str, Port]:
        """Return the input ports: `signal`."""
        return {"signal": Port("values")}

    def outputs(self, shapes: Mapping[str, Shape]) -> Mapping[str, Port]:
        """Return the output ports: `spikes`."""
        return {"spikes": Port("spikes", self.cells(shapes["signal"]))}

    def cells(self, signal: Shape) -> Shape:
        """Return the shape of the units for a signal."""
        return tuple(signal)

    def drive(self, signal: jax.Array) -> jax.Array:
        """Return the input of each unit, 0 to 1."""
        return signal


@register("linear_spiker")
@dataclass(frozen=True)
class LinearSpiker(Encoder):
    """Encode each number of the signal by one leaky unit, which spikes at `max_freq` for a signal of 1.

    With x the signal and e = exp(-dt/tau), in every step::

        ready = r >= cd
        v'    = e v + ready tau (1 - e) k x,    k = 1 + 1 / (exp((1000 - cd max_freq) / (tau max_freq)) - 1)
        spike = v' > tau, and then v' = 0
        r'    = 0 on a spike, else r + dt

    k makes the unit reach its threshold tau from 0 in the time 1000/max_freq - cd between two spikes.
    From Spark (Nogarx/Spark), `LinearSpiker`.

    Ports: `signal` (any shape, 0 to 1) -> `spikes` (the same shape).

    State: `potential` and `refractory` (ms since the last spike), each in the shape of the spikes.

    Attributes:
        tau: the time constant of the units, ms.
        cd: the refractory time after a spike, ms.
        max_freq: the rate at a signal of 1, Hz.
    """

    tau: float = field(default=100.0, metadata={"unit": "ms"})
    cd: float = field(default=2.0, metadata={"unit": "ms"})
    max_freq: float = field(default=100.0, metadata={"unit": "Hz"})

    def init(self, key: jax.Array, shapes: Mapping[str, Shape], *, dt: float, dtype: Any) -> State:
        """Return the initial state: all units at 0 and ready."""
        cells = self.cells(shapes["signal"])
        return {"potential": jnp.zeros(cells, dtype), "refractory": jnp.full(cells, self.cd, dtype)}

    def step(self, state: State, inputs: Mapping[str, jax.Array], *, dt: float) -> tuple[State, dict[str, jax.Array]]:
        """Advance the state by one step of dt ms."""
        potential, refractory = state["potential"], state["refractory"]
        decay = math.exp(-dt / self.tau)
        rise = self._rise(decay, self.drive(inputs["signal"]))
        potential = decay * potential + jnp.where(refractory >= self.cd, rise, 0).astype(potential.dtype)
        spikes = potential > self.tau
        after = {
            "potential": jnp.where(spikes, 0, potential),
            "refractory": jnp.where(spikes, 0, refractory + dt),
        }
        return after, {"spikes": spikes.astype(jnp.int8)}

    def problems(self, *, dt: float) -> list[str]:
        """Report settings of the wrong sign, and a rate that the cooldown does not let it reach."""
        wrong = not_positive(self, "tau", "max_freq") + negative(self, "cd")
        if not wrong and self.cd * self.max_freq >= MS_PER_S:
            wrong.append(
                f"max_freq is {self.max_freq:g} Hz, but a cooldown cd of {self.cd:g} ms allows less than "
                f"{MS_PER_S / self.cd:g} Hz\na lower max_freq or a shorter cd"
            )
        return wrong

    def _rise(self, decay: float, drive: jax.Array) -> jax.Array:
        """Return what a step adds to the potentials of units that are ready."""
        if not is_narrow(drive.dtype):
            return self.tau * (1 - decay) * self._scale() * drive
        # In Spark's order, in which each operation rounds: a product of constants would be rounded once.
        gain = np.asarray(self._scale(), drive.dtype) * (1 - np.asarray(decay, drive.dtype))
        rise: Any = gain.astype(drive.dtype) * (np.asarray(self.tau, drive.dtype) * drive)
        return rise

    def _scale(self) -> float:
        # Not exp(x) - 1, which loses its digits near 0: of a rate close to the one that the cooldown allows.
        return 1 + 1 / math.expm1((MS_PER_S - self.cd * self.max_freq) / (self.tau * self.max_freq))


@register("poisson_spiker")
@dataclass(frozen=True)
class PoissonSpiker(Encoder):
    """Encode each number of the signal by one unit with random spikes, at a rate of `max_freq` for a signal of 1.

    With x the signal, in every step::

        P(spike) = x dt max_freq / 1000

    From Spark (Nogarx/Spark), `PoissonSpiker`. The random number of unit i in step k depends only on the module's key,
    i and k: neither on the number of units nor on their device.

    Ports: `signal` (any shape, 0 to 1) -> `spikes` (the same shape).

    State: `key` (2 words of a threefry key) and `step`, the number of steps so far.

    Attributes:
        max_freq: the rate at a signal of 1, Hz.
    """

    max_freq: float = field(default=100.0, metadata={"unit": "Hz"})

    def init(self, key: jax.Array, shapes: Mapping[str, Shape], *, dt: float, dtype: Any) -> State:
        """Return the initial state: the key as plain words, which any device, file or process can store, and step 0."""
        return {"key": jax.random.key_data(key), "step": jnp.zeros((), jnp.uint32)}

    def step(self, state: State, inputs: Mapping[str, jax.Array], *, dt: float) -> tuple[State, dict[str, jax.Array]]:
        """Advance the state by one step of dt ms."""
        drive = self.drive(inputs["signal"])
        # Name the PRNG implementation: with another default in JAX, the same words would yield other numbers.
        key = jax.random.fold_in(jax.random.wrap_key_data(state["key"], impl="threefry2x32"), state["step"])
        drawn = by_neuron(jax.random.uniform, key, (drive.size,)).reshape(drive.shape)
        spikes = drawn < drive.astype(jnp.float32) * (dt * self.max_freq / MS_PER_S)
        return {**state, "step": state["step"] + 1}, {"spikes": spikes.astype(jnp.int8)}

    def problems(self, *, dt: float) -> list[str]:
        """Report a rate that is not positive, or that would need more than one spike a step."""
        wrong = not_positive(self, "max_freq")
        if not wrong and dt * self.max_freq > MS_PER_S:
            wrong.append(
                f"max_freq is {self.max_freq:g} Hz, and one spike in each step of {dt:g} ms is {MS_PER_S / dt:g} Hz\n"
                "a lower max_freq or a smaller dt"
            )
        return wrong


@dataclass(frozen=True)
class TopologicalMap(Encoder, abc.ABC):
    """A map from each number of the signal to the units of its row that are tuned to nearby values.

    With s the signal, the units of a row at u = 0 ... pi in `resolution` equal steps, ends included::

        x     = (s - mins) / (maxs - mins)
        g     = sin(u + pi x) where glued, else tanh(u - pi x)
        drive = exp(-0.5 g^2 / sigma)

    Attributes:
        glue: whether a row is circular, as for an angle.
        mins: the minimum of the signal.
        maxs: the maximum of the signal.
        resolution: the number of units in a row.
        sigma: the width of the excitation along the row.
    """

    glue: bool | tuple[bool, ...] = False
    mins: Each = 0.0
    maxs: Each = 1.0
    resolution: int = 64
    sigma: float = 1 / 32

    def cells(self, signal: Shape) -> Shape:
        """Return the shape of the units: one row for each number of the signal."""
        for name in ("glue", "mins", "maxs"):
            _check_shape(name, getattr(self, name), tuple(signal))
        return (*signal, self.resolution)

    def drive(self, signal: jax.Array) -> jax.Array:
        """Return the input of each unit, 0 to 1."""
        mins, maxs, glue = (np.broadcast_to(setting, signal.shape) for setting in (self.mins, self.maxs, self.glue))
        x = (signal - mins.astype(signal.dtype)) / (maxs - mins).astype(signal.dtype)
        if is_narrow(x.dtype):
            # JAX divides first in some versions, and multiplies first in others.
            row = np.linspace(0, math.pi, self.resolution).astype(x.dtype)
            u = jnp.broadcast_to(row, (*x.shape, self.resolution))
        else:
            u = jnp.linspace(jnp.zeros_like(x), jnp.full_like(x, math.pi), self.resolution, axis=-1)
        x, glue = x[..., None], glue[..., None]
        g = jnp.where(glue, jnp.sin(u + math.pi * x), jnp.tanh(u - math.pi * x))
        return jnp.exp((-0.5 / self.sigma) * g * g)

    def problems(self, *, dt: float) -> list[str]:
        """Report the problems of the units, a map of no units, and a signal of no width."""
        wrong = super().problems(dt=dt) + not_positive(self, "resolution", "sigma")
        mins, maxs = np.atleast_1d(self.mins), np.atleast_1d(self.maxs)
        if len(mins) != len(maxs) and 1 not in (len(mins), len(maxs)):
            return [*wrong, f"mins has {len(mins)} values and maxs has {len(maxs)}\none value for all, or as many"]
        wrong += [
            f"mins is {low:g} and maxs is {high:g}\nmaxs above mins: the range of the signal"
            for low, high in zip(*np.broadcast_arrays(mins, maxs), strict=True)
            if not low < high
        ]
        return wrong


@register("topological_linear_spiker")
@dataclass(frozen=True)
class TopologicalLinearSpiker(TopologicalMap, LinearSpiker):
    """Encode each number by regular spikes of the units of its row that are tuned to nearby values.

    The units are those of `LinearSpiker`, driven by `TopologicalMap`::

        x     = (s - mins) / (maxs - mins)
        g     = sin(u + pi x) where glued, else tanh(u - pi x);    u = 0 ... pi along the row
        drive = exp(-0.5 g^2 / sigma)
        v'    = e v + ready tau (1 - e) k drive,    e = exp(-dt/tau),  k as in `LinearSpiker`

    From Spark (Nogarx/Spark), `TopologicalLinearSpiker`.

    Ports: `signal` (n,) -> `spikes` (n, resolution).

    State: `potential` and `refractory` (ms since the last spike), each (n, resolution).

    Attributes:
        tau: the time constant of the units, ms.
        cd: the refractory time after a spike, ms.
        max_freq: the rate at full drive, Hz.
        glue: whether a row is circular, as for an angle; one value for all numbers, or one each.
        mins: the minimum of the signal; one value for all numbers, or one each.
        maxs: the maximum of the signal.
        resolution: the number of units in a row.
        sigma: the width of the excitation along the row.
    """


@register("topological_poisson_spiker")
@dataclass(frozen=True)
class TopologicalPoissonSpiker(TopologicalMap, PoissonSpiker):
    """Encode each number by random spikes of the units of its row that are tuned to nearby values.

    The units are those of `PoissonSpiker`, with the rates of `TopologicalMap`::

        x        = (s - mins) / (maxs - mins)
        g        = sin(u + pi x) where glued, else tanh(u - pi x);    u = 0 ... pi along the row
        drive    = exp(-0.5 g^2 / sigma)
        P(spike) = drive dt max_freq / 1000

    From Spark (Nogarx/Spark), `TopologicalPoissonSpiker`.

    Ports: `signal` (n,) -> `spikes` (n, resolution).

    State: `key` (2 words of a threefry key) and `step`, the number of steps so far.

    Attributes:
        max_freq: the rate at full drive, Hz.
        glue: whether a row is circular, as for an angle; one value for all numbers, or one each.
        mins: the minimum of the signal; one value for all numbers, or one each.
        maxs: the maximum of the signal.
        resolution: the number of units in a row.
        sigma: the width of the excitation along the row.
    """


def _check_shape(name: str, setting: object, signal: Shape) -> None:
    if isinstance(setting, tuple) and len(setting) not in (1, *signal[-1:]):
        raise BrainError(
            f"{name} has {len(setting)} values, and the signal is {signal}\none value for all, or one for each number"
        )
