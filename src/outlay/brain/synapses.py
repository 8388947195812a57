"""Synapses: the current that spikes bring, at once or fading, and the sum over what arrives.

The trace of each pair, summed over the pairs of a neuron, is the trace of their sum: there is one for each neuron.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from outlay.brain.delays import Arrivals
from outlay.brain.initializers import Initializer, NormalizedSparseUniform
from outlay.brain.module import Component, State, not_positive
from outlay.brain.registry import register
from outlay.brain.traces import RDTracer, RFSTracer, Tracer


@dataclass(frozen=True)
class Synapses(Component, abc.ABC):
    """A kernel, and the current it makes of the spikes that arrive.

    Attributes:
        kernel: the kernel at first, pA.
    """

    kernel: Initializer = field(default_factory=NormalizedSparseUniform, metadata={"unit": "pA"})

    def init(self, key: jax.Array, units: int, num_inputs: int, *, dt: float, dtype) -> State:
        """The kernel, (post, pre)."""
        return {"kernel": self.kernel(key, (units, num_inputs), dtype)}

    def step(self, state: State, arrivals: Arrivals, *, dt: float) -> tuple[State, jax.Array]:
        """The state after a step, and the current into each post neuron, pA."""
        return self.receive(state, arriving_current(state["kernel"], arrivals), dt=dt)

    @abc.abstractmethod
    def receive(self, state: State, brought: jax.Array, *, dt: float) -> tuple[State, jax.Array]:
        """The state after a step, and the current into each post neuron, of what the spikes that arrive bring.

        Args:
            state: the state before it.
            brought: Σ_j kernel[i,j] value[i,j] for each post neuron, in float32.
            dt: the time of one step, ms.
        """


def arriving_current(kernel: jax.Array, arrivals: Arrivals) -> jax.Array:
    """What the spikes that arrive bring to each post neuron: Σ_j kernel[i,j] value[i,j], in float32."""
    # Else every pair would look at the sign of its pre neuron anew.
    sign = jax.lax.optimization_barrier(jnp.where(arrivals.inhibitory, -1.0, 1.0).astype(jnp.float32))

    def brought(pre: slice) -> jax.Array:
        return jnp.where(arrivals.arrived[..., pre], kernel[:, pre].astype(jnp.float32), 0) * sign[None, pre]

    return sum_rows(brought, kernel.shape[1])


LANES = 16
MOST_BLOCKS = 64


def sum_rows(values: Callable[[slice], jax.Array], num_columns: int) -> jax.Array:
    """The sum of each row of a matrix, bit for bit the same whatever the other rows are.

    XLA chooses the order of a reduction by the size of the whole array, so that neurons computed in smaller groups
    would sum in another order. Here blocks of columns are added one after the other, element by element; then the lanes
    that are left are added in halves. Each block is made where it is added: a matrix of all would be written to memory,
    and read back.

    Args:
        values: some columns of the matrix, (rows, those columns).
        num_columns: how many it has.
    """
    lanes = num_lanes(num_columns)
    total = _padded(values(slice(0, min(lanes, num_columns))), lanes)
    for start in range(lanes, num_columns, lanes):
        total = total + _padded(values(slice(start, min(start + lanes, num_columns))), lanes)
    # Else everything that reads the sum would compute it anew.
    total = jax.lax.optimization_barrier(total)
    while total.shape[1] > 1:
        half = total.shape[1] // 2
        total = total[:, :half] + total[:, half:]
    return total[:, 0]


def num_lanes(num_columns: int) -> int:
    """In how many lanes rows of so many columns are summed: a power of two."""
    lanes = LANES
    while num_columns > MOST_BLOCKS * lanes:
        lanes *= 2
    return lanes


def _padded(block: jax.Array, lanes: int) -> jax.Array:
    """A block with zeros in the lanes that it lacks."""
    return jnp.pad(block, ((0, 0), (0, lanes - block.shape[1])))


@register("linear", kind="synapses")
@dataclass(frozen=True)
class LinearSynapses(Synapses):
    """Current in the step in which a spike arrives.

    In every step::

        current[i] = Σ_j kernel[i,j] value[i,j],    value = +1, -1 from an inhibitory neuron, or 0

    Source: `LinearSynapses` of Spark (Nogarx/Spark).

    State: `kernel` (post, pre), pA.

    Attributes:
        kernel: the kernel at first, pA.
    """

    def receive(self, state: State, brought: jax.Array, *, dt: float) -> tuple[State, jax.Array]:
        """The current of this step."""
        return state, brought.astype(state["kernel"].dtype)


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

    def receive(self, state: State, brought: jax.Array, *, dt: float) -> tuple[State, jax.Array]:
        """The trace after this step is the current."""
        tracer = self.tracer(state["kernel"].shape[1])
        trace = tracer.step(state["trace"], brought, dt=dt)
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
