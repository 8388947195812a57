"""Traces of signals: numbers that last longer than the step in which they arrive."""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax

from outlay.brain.module import Module, State
from outlay.brain.port import Port, Shape
from outlay.brain.registry import register
from outlay.brain.spikers.spiker_settings import not_positive
from outlay.brain.traces import Tracer


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
