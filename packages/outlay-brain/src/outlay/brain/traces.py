"""Decaying traces of spikes and signals, and modules that trace a signal.

A tracer has only settings; the trace itself is an array, or a dictionary of arrays, in the state of its owner.
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
        tau: the time constant of the decay, ms.
        scale: the amount that one spike adds.
        base: its resting value.

    Example:
        >>> from outlay.brain import Tracer
        >>> float(Tracer(tau=20.0, scale=2.0).step(jnp.zeros(()), 1.0, dt=1.0))
        2.0
    """

    tau: float
    scale: float = 1.0
    base: float = 0.0

    def init(self, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        """Return the initial trace."""
        return jnp.full(shape, self.base, dtype)

    def step(self, trace: jax.Array, x: Any, *, dt: float) -> jax.Array:
        """Return the trace after a step, with the same shape and dtype."""
        base, scale = (_in_dtype(value, trace.dtype) for value in (self.base, self.scale))
        # Skip the two operations of a zero base: synapses run this for every neuron in every step.
        has_base = not isinstance(base, int | float) or base != 0
        left = _in_dtype(decay_of(dt, self.tau), trace.dtype) * (trace - base if has_base else trace)
        taken = scale * jnp.asarray(x, trace.dtype)
        return (left + taken + base if has_base else left + taken).astype(trace.dtype)


def decay_of(dt: float, tau: Any) -> Any:
    """Return exp(-dt/tau): a number, or for an array of time constants one in float32."""
    return math.exp(-dt / tau) if isinstance(tau, int | float) else jnp.exp(-dt / tau)


def _in_dtype(value: Any, dtype: Any) -> Any:
    """Return a number as it is, which takes the dtype of what it meets, and an array in this dtype."""
    return value if isinstance(value, int | float) else value.astype(dtype)


@dataclass(frozen=True)
class RDTracer:
    """A trace that rises before it decays: the difference of two exponential traces.

    In every step::

        decay = Tracer(tau_decay, scale_decay, base_decay)
        rise  = Tracer(r, scale_rise, base_rise),    r = tau_rise tau_decay / (tau_rise + tau_decay)
        value = decay - rise

    Source: `RDTracer` of Spark (Nogarx/Spark).

    Attributes:
        tau_rise: the time constant of the rise, ms.
        tau_decay: the time constant of the decay, ms.
        scale_rise: the amount that one spike adds to the rising part.
        scale_decay: the amount that one spike adds to the decaying part.
        base_rise: the resting value of the rising part.
        base_decay: the resting value of the decaying part.
    """

    tau_rise: float
    tau_decay: float
    scale_rise: float = 1.0
    scale_decay: float = 1.0
    base_rise: float = 0.0
    base_decay: float = 0.0

    @property
    def rise(self) -> Tracer:
        """The subtracted part."""
        # 1/r = 1/tau_rise + 1/tau_decay: rates add up.
        coupled = self.tau_rise * self.tau_decay / (self.tau_rise + self.tau_decay)
        return Tracer(coupled, self.scale_rise, self.base_rise)

    @property
    def decay(self) -> Tracer:
        """The slower part."""
        return Tracer(self.tau_decay, self.scale_decay, self.base_decay)

    def init(self, shape: tuple[int, ...], dtype: Any) -> dict[str, jax.Array]:
        """Return both initial parts."""
        return {"rise": self.rise.init(shape, dtype), "decay": self.decay.init(shape, dtype)}

    def step(self, trace: dict[str, jax.Array], x: Any, *, dt: float) -> dict[str, jax.Array]:
        """Return both parts after a step."""
        return {
            "rise": self.rise.step(trace["rise"], x, dt=dt),
            "decay": self.decay.step(trace["decay"], x, dt=dt),
        }

    def value(self, trace: dict[str, jax.Array]) -> jax.Array:
        """Return the trace itself."""
        return trace["decay"] - trace["rise"]


@dataclass(frozen=True)
class RFSTracer:
    """A trace that rises, then decays fast at first and slowly later: a mixture of two tracers like `RDTracer`.

    In every step::

        value = alpha fast + (1 - alpha) slow

    Source: `RFSTracer` of Spark (Nogarx/Spark).

    Attributes:
        alpha: the fraction of the fast trace, from 0 to 1.
        fast: the tracer that decays fast.
        slow: the tracer that decays slowly.
    """

    alpha: float
    fast: RDTracer
    slow: RDTracer

    def init(self, shape: tuple[int, ...], dtype: Any) -> dict[str, dict[str, jax.Array]]:
        """Return both initial traces."""
        return {"fast": self.fast.init(shape, dtype), "slow": self.slow.init(shape, dtype)}

    def step(self, trace: dict[str, dict[str, jax.Array]], x: Any, *, dt: float) -> dict[str, dict[str, jax.Array]]:
        """Return both traces after a step."""
        return {"fast": self.fast.step(trace["fast"], x, dt=dt), "slow": self.slow.step(trace["slow"], x, dt=dt)}

    def value(self, trace: dict[str, dict[str, jax.Array]]) -> jax.Array:
        """Return the trace itself."""
        fast, slow = self.fast.value(trace["fast"]), self.slow.value(trace["slow"])
        return _in_dtype(self.alpha, fast.dtype) * fast + _in_dtype(1 - self.alpha, slow.dtype) * slow


@dataclass(frozen=True)
class SignalTrace(Module, abc.ABC):
    """A module that traces a signal; the trace has the shape of the signal.

    Attributes:
        tau: the time constant of the decay, ms.
        base: the resting value of the trace.
        chained: whether it also reads `trace`, of the same shape, and adds that to its output.
    """

    tau: float = field(default=10.0, metadata={"unit": "ms"})
    base: float = 0.0
    chained: bool = False

    @abc.abstractmethod
    def scale(self, dt: float) -> float:
        """Return the fraction of the signal that a step adds to the trace."""

    def inputs(self) -> Mapping[str, Port]:
        """Return the input ports: `signal`; chained, `trace` too."""
        return {"signal": Port("values"), **({"trace": Port("values")} if self.chained else {})}

    def outputs(self, shapes: Mapping[str, Shape]) -> Mapping[str, Port]:
        """Return the output ports: `output`."""
        return {"output": Port("values", tuple(shapes["signal"]))}

    def init(self, key: jax.Array, shapes: Mapping[str, Shape], *, dt: float, dtype: Any) -> State:
        """Return the initial state: the trace at its base."""
        return {"trace": self._tracer(dt).init(tuple(shapes["signal"]), dtype)}

    def step(self, state: State, inputs: Mapping[str, jax.Array], *, dt: float) -> tuple[State, dict[str, jax.Array]]:
        """Advance the state by one step of dt ms."""
        after = self._tracer(dt).step(state["trace"], inputs["signal"], dt=dt)
        added = inputs["trace"].reshape(after.shape) if self.chained else 0
        return {"trace": after}, {"output": after + added}

    def problems(self, *, dt: float) -> list[str]:
        """Report a time constant that is not positive."""
        return not_positive(self, "tau")

    def _tracer(self, dt: float) -> Tracer:
        return Tracer(self.tau, self.scale(dt), self.base)


@register("signal_accumulator")
@dataclass(frozen=True)
class SignalAccumulator(SignalTrace):
    """Accumulate a signal with exponential decay: a constant signal s yields s / (1 - exp(-dt/tau)), about s tau/dt.

    In every step::

        trace' = base + exp(-dt/tau) (trace - base) + signal
        output = trace', and what `trace` reads added to it where chained

    From Spark (Nogarx/Spark), `SignalAccumulator`.

    Ports: `signal` (any shape) -> `output` (the same shape).

    State: `trace`, of the shape of the signal.

    Attributes:
        tau: the time constant of the decay, ms.
        base: the resting value of the trace.
        chained: whether it also reads `trace`, of the same shape, and adds that to its output.
    """

    def scale(self, dt: float) -> float:
        """Return 1: the whole signal."""
        return 1.0


@register("signal_average")
@dataclass(frozen=True)
class SignalAverage(SignalTrace):
    """Average a signal over recent time: a constant signal yields itself.

    In every step::

        trace' = base + exp(-dt/tau) (trace - base) + (1 - exp(-dt/tau)) signal
        output = trace', and what `trace` reads added to it where chained

    From Spark (Nogarx/Spark), `SignalAverage`.

    Ports: `signal` (any shape) -> `output` (the same shape).

    State: `trace`, of the shape of the signal.

    Attributes:
        tau: the time constant of the decay, ms.
        base: the resting value of the trace.
        chained: whether it also reads `trace`, of the same shape, and adds that to its output.
    """

    def scale(self, dt: float) -> float:
        """Return the fraction that the trace loses in a step."""
        return -math.expm1(-dt / self.tau)
