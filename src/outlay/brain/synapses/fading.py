"""Synapses whose current fades.

A trace of each pair, summed over the pairs of a neuron, is the trace of their sum: there is one of each neuron.
"""

from __future__ import annotations

import abc
import dataclasses
from dataclasses import dataclass, field
from typing import Any

import jax

from outlay.brain.component import State
from outlay.brain.delays.delays import Arrivals
from outlay.brain.registry import register
from outlay.brain.spikers.spiker_settings import not_positive
from outlay.brain.synapses.synapses import Synapses, arriving_current
from outlay.brain.traces import RDTracer, RFSTracer, Tracer


@dataclass(frozen=True)
class FadingSynapses(Synapses, abc.ABC):
    """Synapses whose current is a trace of what arrives.

    Attributes:
        kernel: the kernel at first, pA.
    """

    @abc.abstractmethod
    def tracer(self, num_inputs: int) -> Any:
        """The trace of so many pairs together, each of which has its base."""

    def init(self, key: jax.Array, units: int, num_inputs: int, *, dt: float, dtype) -> State:
        """The kernel, and the trace of nothing."""
        kernel = super().init(key, units, num_inputs, dt=dt, dtype=dtype)
        return {**kernel, "trace": self.tracer(num_inputs).init((units,), dtype)}

    def step(self, state: State, arrivals: Arrivals, *, dt: float) -> tuple[State, jax.Array]:
        """The trace after this step is the current."""
        tracer = self.tracer(state["kernel"].shape[1])
        trace = tracer.step(state["trace"], arriving_current(state["kernel"], arrivals), dt=dt)
        return {**state, "trace": trace}, trace if isinstance(tracer, Tracer) else tracer.value(trace)

    def problems(self, *, dt: float) -> list[str]:
        """Time constants that are not positive."""
        return not_positive(self, *(f.name for f in dataclasses.fields(self) if f.metadata.get("unit") == "ms"))


@register("traced", kind="synapses")
@dataclass(frozen=True)
class TracedSynapses(FadingSynapses):
    """Current that jumps when a spike arrives, and decays.

    In every step::

        current[i] = Σ_j trace[i,j],    trace = Tracer(tau, scale, base) of kernel[i,j] value[i,j]

    Source: `TracedSynapses` of Spark (Nogarx/Spark).

    State: `kernel` (post, pre), pA; `trace` (post,): the sum of the traces, pA.

    Attributes:
        kernel: the kernel at first, pA.
        tau: time constant of the decay, ms.
        scale: how much of the kernel a spike leaves.
        base: what the trace of each pair decays to, pA.
    """

    tau: float = field(default=5.0, metadata={"unit": "ms"})
    scale: float = 1.0
    base: float = field(default=0.0, metadata={"unit": "pA"})

    def tracer(self, num_inputs: int) -> Tracer:
        """One tracer."""
        return Tracer(self.tau, self.scale, num_inputs * self.base)


@register("rd_traced", kind="synapses")
@dataclass(frozen=True)
class RDTracedSynapses(FadingSynapses):
    """Current that rises after a spike arrived, then decays.

    In every step::

        current[i] = Σ_j value(trace[i,j]),    trace = RDTracer(...) of kernel[i,j] value[i,j]

    Source: `RDTracedSynapses` of Spark (Nogarx/Spark).

    State: `kernel` (post, pre), pA; `trace.rise` and `trace.decay` (post,): the sums of their traces, pA.

    Attributes:
        kernel: the kernel at first, pA.
        tau_rise: time constant of the rise, ms.
        tau_decay: time constant of the decay, ms.
        scale_rise: how much of the kernel a spike leaves in the rising part.
        scale_decay: how much of the kernel a spike leaves in the decaying part.
        base_rise: what the rising part of each pair decays to, pA.
        base_decay: what the decaying part of each pair decays to, pA.
    """

    tau_rise: float = field(default=1.0, metadata={"unit": "ms"})
    tau_decay: float = field(default=5.0, metadata={"unit": "ms"})
    scale_rise: float = 1.0
    scale_decay: float = 1.0
    base_rise: float = field(default=0.0, metadata={"unit": "pA"})
    base_decay: float = field(default=0.0, metadata={"unit": "pA"})

    def tracer(self, num_inputs: int) -> RDTracer:
        """A tracer that rises and decays."""
        bases = num_inputs * self.base_rise, num_inputs * self.base_decay
        return RDTracer(self.tau_rise, self.tau_decay, self.scale_rise, self.scale_decay, *bases)


@register("rfs_traced", kind="synapses")
@dataclass(frozen=True)
class RFSTracedSynapses(FadingSynapses):
    """Current that rises after a spike arrived, then decays fast at first and slowly later.

    In every step::

        current[i] = Σ_j value(trace[i,j]),    trace = RFSTracer(...) of kernel[i,j] value[i,j]

    Source: `RFSTracedSynapses` of Spark (Nogarx/Spark).

    State: `kernel` (post, pre), pA; `trace.fast` and `trace.slow`, each with `rise` and `decay` (post,), pA.

    Attributes:
        kernel: the kernel at first, pA.
        alpha: the share of the fast decay, from 0 to 1.
        tau_rise: time constant of the rise, ms.
        tau_fast_decay: time constant of the fast decay, ms.
        tau_slow_decay: time constant of the slow decay, ms.
        scale_rise: how much of the kernel a spike leaves in the rising parts.
        scale_fast_decay: how much of the kernel a spike leaves in the fast part.
        scale_slow_decay: how much of the kernel a spike leaves in the slow part.
        base_rise: what the rising parts of each pair decay to, pA.
        base_fast_decay: what the fast part of each pair decays to, pA.
        base_slow_decay: what the slow part of each pair decays to, pA.
    """

    alpha: float = 0.8
    tau_rise: float = field(default=1.0, metadata={"unit": "ms"})
    tau_fast_decay: float = field(default=5.0, metadata={"unit": "ms"})
    tau_slow_decay: float = field(default=50.0, metadata={"unit": "ms"})
    scale_rise: float = 1.0
    scale_fast_decay: float = 1.0
    scale_slow_decay: float = 1.0
    base_rise: float = field(default=0.0, metadata={"unit": "pA"})
    base_fast_decay: float = field(default=0.0, metadata={"unit": "pA"})
    base_slow_decay: float = field(default=0.0, metadata={"unit": "pA"})

    def tracer(self, num_inputs: int) -> RFSTracer:
        """Two tracers that rise and decay, mixed."""
        rise = num_inputs * self.base_rise
        fast, slow = num_inputs * self.base_fast_decay, num_inputs * self.base_slow_decay
        return RFSTracer(
            self.alpha,
            RDTracer(self.tau_rise, self.tau_fast_decay, self.scale_rise, self.scale_fast_decay, rise, fast),
            RDTracer(self.tau_rise, self.tau_slow_decay, self.scale_rise, self.scale_slow_decay, rise, slow),
        )
