"""Traces: what spikes and signals leave behind, decaying with time; and the modules that keep one of a signal.

A trace is described by its settings, here, and is an array, or a dictionary of arrays, in the state of whoever has it.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from outlay.brain.module import Module, Port, Shape, State, not_positive
from outlay.brain.registry import register


@dataclass(frozen=True)
class Tracer:
    """An exponential trace.

    In every step of dt ms it takes x in::

        t' = base + exp(-dt/tau) (t - base) + scale x,    t = base at first

    Source: `Tracer` of Spark (Nogarx/Spark).

    Attributes:
        tau: time constant of the decay, ms.
        scale: how much one spike leaves.
        base: what it decays to.

    Example:
        >>> from outlay.brain import Tracer
        >>> float(Tracer(tau=20.0, scale=2.0).step(jnp.zeros(()), 1.0, dt=1.0))
        2.0
    """

    tau: float
    scale: float = 1.0
    base: float = 0.0

    def init(self, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        """The trace before the first step."""
        return jnp.full(shape, self.base, dtype)

    def step(self, trace: jax.Array, x: Any, *, dt: float) -> jax.Array:
        """The trace after a step, of the same shape and dtype."""
        # Without a base its two operations are left out: synapses take this step for every neuron.
        left = math.exp(-dt / self.tau) * (trace - self.base if self.base else trace)
        taken = self.scale * jnp.asarray(x, trace.dtype)
        return (left + taken + self.base if self.base else left + taken).astype(trace.dtype)


@dataclass(frozen=True)
class RDTracer:
    """A trace that rises before it decays: the difference of two exponential ones.

    In every step::

        decay = Tracer(tau_decay, scale_decay, base_decay)
        rise  = Tracer(r, scale_rise, base_rise),    r = tau_rise tau_decay / (tau_rise + tau_decay)
        value = decay - rise

    Source: `RDTracer` of Spark (Nogarx/Spark).

    Attributes:
        tau_rise: time constant of the rise, ms.
        tau_decay: time constant of the decay, ms.
        scale_rise: how much one spike leaves in the rising part.
        scale_decay: how much one spike leaves in the decaying part.
        base_rise: what the rising part decays to.
        base_decay: what the decaying part decays to.
    """

    tau_rise: float
    tau_decay: float
    scale_rise: float = 1.0
    scale_decay: float = 1.0
    base_rise: float = 0.0
    base_decay: float = 0.0

    @property
    def rise(self) -> Tracer:
        """The part that is taken away."""
        coupled = self.tau_rise * self.tau_decay / (self.tau_rise + self.tau_decay)
        return Tracer(coupled, self.scale_rise, self.base_rise)

    @property
    def decay(self) -> Tracer:
        """The part that stays longer."""
        return Tracer(self.tau_decay, self.scale_decay, self.base_decay)

    def init(self, shape: tuple[int, ...], dtype: Any) -> dict[str, jax.Array]:
        """Both parts before the first step."""
        return {"rise": self.rise.init(shape, dtype), "decay": self.decay.init(shape, dtype)}

    def step(self, trace: dict[str, jax.Array], x: Any, *, dt: float) -> dict[str, jax.Array]:
        """Both parts after a step."""
        return {
            "rise": self.rise.step(trace["rise"], x, dt=dt),
            "decay": self.decay.step(trace["decay"], x, dt=dt),
        }

    def value(self, trace: dict[str, jax.Array]) -> jax.Array:
        """The trace itself."""
        return trace["decay"] - trace["rise"]


@dataclass(frozen=True)
class RFSTracer:
    """A trace that rises, then decays fast at first and slowly later: two that rise and decay, mixed.

    In every step::

        value = alpha fast + (1 - alpha) slow

    Source: `RFSTracer` of Spark (Nogarx/Spark).

    Attributes:
        alpha: the share of the fast one, from 0 to 1.
        fast: the one that decays fast.
        slow: the one that decays slowly.
    """

    alpha: float
    fast: RDTracer
    slow: RDTracer

    def init(self, shape: tuple[int, ...], dtype: Any) -> dict[str, dict[str, jax.Array]]:
        """Both before the first step."""
        return {"fast": self.fast.init(shape, dtype), "slow": self.slow.init(shape, dtype)}

    def step(self, trace: dict[str, dict[str, jax.Array]], x: Any, *, dt: float) -> dict[str, dict[str, jax.Array]]:
        """Both after a step."""
        return {"fast": self.fast.step(trace["fast"], x, dt=dt), "slow": self.slow.step(trace["slow"], x, dt=dt)}

    def value(self, trace: dict[str, dict[str, jax.Array]]) -> jax.Array:
        """The trace itself."""
        return self.alpha * self.fast.value(trace["fast"]) + (1 - self.alpha) * self.slow.value(trace["slow"])


@dataclass(frozen=True)
class SignalTrace(Module, abc.ABC):
    """The trace of a signal, of its shape.

    Attributes:
        tau: time constant of the decay, ms.
        base: what the trace decays to.
        chained: whether it also reads `trace`, of the same shape, and adds that to its output.
    """

    tau: float = field(default=10.0, metadata={"unit": "ms"})
    base: float = 0.0
    chained: bool = False

    @abc.abstractmethod
    def scale(self, dt: float) -> float:
        """How much of the signal of one step is added to the trace."""

    def inputs(self) -> Mapping[str, Port]:
        """It reads `signal`; chained, `trace` too."""
        return {"signal": Port("values"), **({"trace": Port("values")} if self.chained else {})}

    def outputs(self, shapes: Mapping[str, Shape]) -> Mapping[str, Port]:
        """It writes `output`."""
        return {"output": Port("values", tuple(shapes["signal"]))}

    def init(self, key: jax.Array, shapes: Mapping[str, Shape], *, dt: float, dtype: Any) -> State:
        """The trace at its base."""
        return {"trace": self._tracer(dt).init(tuple(shapes["signal"]), dtype)}

    def step(self, state: State, inputs: Mapping[str, jax.Array], *, dt: float) -> tuple[State, dict[str, jax.Array]]:
        """One step of dt ms."""
        after = self._tracer(dt).step(state["trace"], inputs["signal"], dt=dt)
        added = inputs["trace"].reshape(after.shape) if self.chained else 0
        return {"trace": after}, {"output": after + added}

    def problems(self, *, dt: float) -> list[str]:
        """A time constant that is not positive."""
        return not_positive(self, "tau")

    def _tracer(self, dt: float) -> Tracer:
        return Tracer(self.tau, self.scale(dt), self.base)


@register("signal_accumulator")
@dataclass(frozen=True)
class SignalAccumulator(SignalTrace):
    """What has arrived so far, forgotten with time: a steady signal s becomes s / (1 - exp(-dt/tau)), about s tau/dt.

    In every step::

        trace' = base + exp(-dt/tau) (trace - base) + signal
        output = trace', and what `trace` reads added to it where chained

    From Spark (Nogarx/Spark), `SignalAccumulator`.

    Ports: `signal` (any shape) -> `output` (the same shape).

    State: `trace`, of the shape of the signal.

    Attributes:
        tau: time constant of the decay, ms.
        base: what the trace decays to.
        chained: whether it also reads `trace`, of the same shape, and adds that to its output.
    """

    def scale(self, dt: float) -> float:
        """All of it."""
        return 1.0


@register("signal_average")
@dataclass(frozen=True)
class SignalAverage(SignalTrace):
    """The mean of what has arrived of late: a steady signal becomes itself.

    In every step::

        trace' = base + exp(-dt/tau) (trace - base) + (1 - exp(-dt/tau)) signal
        output = trace', and what `trace` reads added to it where chained

    From Spark (Nogarx/Spark), `SignalAverage`.

    Ports: `signal` (any shape) -> `output` (the same shape).

    State: `trace`, of the shape of the signal.

    Attributes:
        tau: time constant of the decay, ms.
        base: what the trace decays to.
        chained: whether it also reads `trace`, of the same shape, and adds that to its output.
    """

    def scale(self, dt: float) -> float:
        """As much as the trace loses."""
        return -math.expm1(-dt / self.tau)
