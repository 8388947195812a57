"""Spikers that spread each number of the signal over a row of units, each of which prefers a value of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from outlay.brain.brain_error import BrainError
from outlay.brain.port import Shape
from outlay.brain.registry import register
from outlay.brain.spikers.linear import LinearSpiker
from outlay.brain.spikers.poisson import PoissonSpiker
from outlay.brain.spikers.spiker_settings import not_positive

Each = float | tuple[float, ...]
"""One number for all numbers of the signal, or one for each."""


@dataclass(frozen=True)
class TopologicalMap:
    """Each number of the signal excites the units of its row that lie near its value.

    With s the signal, the units of a row at u = 0 ... pi in `resolution` equal steps, ends included::

        x     = (s - mins) / (maxs - mins)
        g     = sin(u + pi x) where glued, else tanh(u - pi x)
        drive = exp(-0.5 g^2 / sigma)

    Attributes:
        glue: whether the ends of a row are neighbours, as those of an angle are.
        mins: the least value of the signal.
        maxs: the greatest.
        resolution: units in a row.
        sigma: how far the excitation spreads along the row.
    """

    glue: bool | tuple[bool, ...] = False
    mins: Each = 0.0
    maxs: Each = 1.0
    resolution: int = 64
    sigma: float = 1 / 32

    def cells(self, signal: Shape) -> Shape:
        """A row of units for each number of the signal."""
        for name in ("glue", "mins", "maxs"):
            _refuse_other_shape(name, getattr(self, name), tuple(signal))
        return (*signal, self.resolution)

    def drive(self, signal: jax.Array) -> jax.Array:
        """What each unit takes in, 0 to 1."""
        mins, maxs, glue = (np.broadcast_to(setting, signal.shape) for setting in (self.mins, self.maxs, self.glue))
        x = (signal - mins.astype(signal.dtype)) / (maxs - mins).astype(signal.dtype)
        u = jnp.linspace(jnp.zeros_like(x), jnp.full_like(x, math.pi), self.resolution, axis=-1)
        x, glue = x[..., None], glue[..., None]
        g = jnp.where(glue, jnp.sin(u + math.pi * x), jnp.tanh(u - math.pi * x))
        return jnp.exp((-0.5 / self.sigma) * g * g)

    def map_problems(self) -> list[str]:
        """A map of no units, and a signal of no width."""
        wrong = not_positive(self, "resolution", "sigma")
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
    """Rows of leaky units: a number becomes regular spikes of those units of its row that lie near its value.

    The units are those of `LinearSpiker`; each takes in what `TopologicalMap` says::

        x     = (s - mins) / (maxs - mins)
        g     = sin(u + pi x) where glued, else tanh(u - pi x);    u = 0 ... pi along the row
        drive = exp(-0.5 g^2 / sigma)
        v'    = e v + ready tau (1 - e) k drive,    e = exp(-dt/tau),  k as in `LinearSpiker`

    From Spark (Nogarx/Spark), `TopologicalLinearSpiker`.

    Ports: `signal` (n,) -> `spikes` (n, resolution).

    State: `potential` and `refractory` (ms since the last spike), each (n, resolution).

    Attributes:
        tau: time constant of the units, ms.
        cd: time after a spike in which a unit takes nothing in, ms.
        max_freq: rate at full drive, Hz.
        glue: whether the ends of a row are neighbours, as those of an angle are; one for all numbers, or one each.
        mins: the least value of the signal; one for all numbers, or one each.
        maxs: the greatest.
        resolution: units in a row.
        sigma: how far the excitation spreads along the row.
    """

    def problems(self, *, dt: float) -> list[str]:
        """Those of its units and of its map."""
        return LinearSpiker.problems(self, dt=dt) + self.map_problems()


@register("topological_poisson_spiker")
@dataclass(frozen=True)
class TopologicalPoissonSpiker(TopologicalMap, PoissonSpiker):
    """Rows of units that draw: a number becomes random spikes of those units of its row that lie near its value.

    The units are those of `PoissonSpiker`, at the rate that `TopologicalMap` says::

        x        = (s - mins) / (maxs - mins)
        g        = sin(u + pi x) where glued, else tanh(u - pi x);    u = 0 ... pi along the row
        drive    = exp(-0.5 g^2 / sigma)
        P(spike) = drive dt max_freq / 1000

    From Spark (Nogarx/Spark), `TopologicalPoissonSpiker`.

    Ports: `signal` (n,) -> `spikes` (n, resolution).

    State: `key` (2 words of a threefry key) and `step`, how many there were.

    Attributes:
        max_freq: rate at full drive, Hz.
        glue: whether the ends of a row are neighbours, as those of an angle are; one for all numbers, or one each.
        mins: the least value of the signal; one for all numbers, or one each.
        maxs: the greatest.
        resolution: units in a row.
        sigma: how far the excitation spreads along the row.
    """

    def problems(self, *, dt: float) -> list[str]:
        """Those of its units and of its map."""
        return PoissonSpiker.problems(self, dt=dt) + self.map_problems()


def _refuse_other_shape(name: str, setting: object, signal: Shape) -> None:
    if isinstance(setting, tuple) and len(setting) not in (1, *signal[-1:]):
        raise BrainError(
            f"{name} has {len(setting)} values, and the signal is {signal}\none value for all, or one for each number"
        )
