"""Synapses: the current of arriving spikes, instantaneous or decaying.

Traces are linear, so the sum of the traces of a neuron's pairs is the trace of their sum: one trace per neuron
suffices.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from outlay.brain.check_components import check_kernel
from outlay.brain.delays import Arrivals
from outlay.brain.initializers import Initializer, NormalizedSparseUniform
from outlay.brain.module import Component, State, not_positive
from outlay.brain.registry import register
from outlay.brain.traces import RDTracer, RFSTracer, Tracer


@dataclass(frozen=True)
class Synapses(Component, abc.ABC):
    """A kernel, and the current that it turns arriving spikes into.

    Attributes:
        kernel: the initial kernel, pA.
    """

    kernel: Initializer = field(default_factory=NormalizedSparseUniform, metadata={"unit": "pA"})

    def init(self, key: jax.Array, units: int, num_inputs: int, *, dt: float, dtype) -> State:
        """Return the initial state: the kernel, (post, pre)."""
        kernel = self.kernel(key, (units, num_inputs), dtype)
        check_kernel(self.kernel, kernel, (units, num_inputs))
        return {"kernel": kernel}

    def step(self, state: State, arrivals: Arrivals, *, dt: float) -> tuple[State, jax.Array]:
        """Return the state after a step, and the current into each post neuron, pA."""
        return self.receive(state, arriving_current(state["kernel"], arrivals), dt=dt)

    @abc.abstractmethod
    def receive(self, state: State, brought: jax.Array, *, dt: float) -> tuple[State, jax.Array]:
        """Return the state after a step, and the current into each post neuron.

        Args:
            state: the state before the step.
            brought: the weighted sum Σ_j kernel[i,j] value[i,j] for each post neuron, in float32.
            dt: the duration of a step, ms.
        """


def arriving_current(kernel: jax.Array, arrivals: Arrivals) -> jax.Array:
    """Sum the arriving spikes over the kernel for each post neuron: Σ_j kernel[i,j] value[i,j], in float32."""
    # Without the barrier XLA fuses this into its consumer and recomputes the sign for every pair.
    signs = jnp.where(arrivals.inhibitory, -1.0, 1.0) if arrivals.values is None else arrivals.values
    sign = jax.lax.optimization_barrier(signs.astype(jnp.float32))
    arrived = jnp.broadcast_to(arrivals.arrived, kernel.shape)

    def brought(pre: slice) -> jax.Array:
        # In operations of jax.lax, which are traced faster than those of jax.numpy: a kernel has dozens of blocks.
        block = _columns(kernel, pre).astype(jnp.float32)
        taken = jax.lax.select(_columns(arrived, pre), block, jax.lax.full_like(block, 0))
        return taken * jax.lax.broadcast_in_dim(_columns(sign, pre), block.shape, (1,))

    return sum_rows(brought, kernel.shape[1])


def _columns(array: jax.Array, columns: slice) -> jax.Array:
    return jax.lax.slice_in_dim(array, columns.start, columns.stop, axis=-1)


LANES = 16
"""The fewest lanes of a sum: those of a vector in `fused`, which adds in the same order and so to the same bits."""
MOST_BLOCKS = 64
"""The most blocks of a row: each is traced by itself, so of longer rows the blocks are wider."""


def sum_rows(values: Callable[[slice], jax.Array], num_columns: int) -> jax.Array:
    """Sum each row of a matrix, bit for bit independently of the number of rows.

    XLA chooses the order of a reduction by the size of the whole array, so neurons computed in smaller groups would be
    summed in another order. This function adds blocks of columns one after the other, element by element, and then
    halves the remaining lanes repeatedly. Each block is computed where it is added, since XLA would write the whole
    matrix to memory and read it back.

    Args:
        values: returns a slice of columns of the matrix, (rows, columns).
        num_columns: the number of columns.
    """
    lanes = num_lanes(num_columns)
    total = _padded(values(slice(0, min(lanes, num_columns))), lanes)
    for start in range(lanes, num_columns, lanes):
        total = total + _padded(values(slice(start, min(start + lanes, num_columns))), lanes)
    # Without the barrier XLA fuses the sum into each of its consumers and recomputes it.
    total = jax.lax.optimization_barrier(total)
    while total.shape[1] > 1:
        half = total.shape[1] // 2
        total = total[:, :half] + total[:, half:]
    return total[:, 0]


def num_lanes(num_columns: int) -> int:
    """Return the number of lanes in which rows of this many columns are summed: a power of two."""
    lanes = LANES
    while num_columns > MOST_BLOCKS * lanes:
        lanes *= 2
    return lanes


def _padded(block: jax.Array, lanes: int) -> jax.Array:
    """Pad a block with zeros to the number of lanes."""
    if block.shape[1] == lanes:
        return block
    return jnp.pad(block, ((0, 0), (0, lanes - block.shape[1])))


@register("linear", kind="synapses")
@dataclass(frozen=True)
class LinearSynapses(Synapses):
    """Synapses whose current lasts for the step in which a spike arrives.

    In every step::

        current[i] = Σ_j kernel[i,j] value[i,j],    value = +1, -1 from an inhibitory neuron, or 0

    Source: `LinearSynapses` of Spark (Nogarx/Spark).

    State: `kernel` (post, pre), pA.

    Attributes:
        kernel: the initial kernel, pA.
    """

    def receive(self, state: State, brought: jax.Array, *, dt: float) -> tuple[State, jax.Array]:
        """Return the current of this step."""
        return state, brought.astype(state["kernel"].dtype)


@dataclass(frozen=True)
class FadingSynapses(Synapses, abc.ABC):
    """Synapses whose current is a trace of the arriving spikes.

    Attributes:
        kernel: the initial kernel, pA.
    """

    @abc.abstractmethod
    def tracer(self, num_inputs: int) -> Any:
        """Return the tracer for the sum of this many pairs, each with its own base."""

    def init(self, key: jax.Array, units: int, num_inputs: int, *, dt: float, dtype) -> State:
        """Return the initial state: the kernel, and the trace at its base."""
        kernel = super().init(key, units, num_inputs, dt=dt, dtype=dtype)
        return {**kernel, "trace": self.tracer(num_inputs).init((units,), dtype)}

    def receive(self, state: State, brought: jax.Array, *, dt: float) -> tuple[State, jax.Array]:
        """Advance the trace; its new value is the current."""
        tracer = self.tracer(state["kernel"].shape[1])
        trace = tracer.step(state["trace"], brought, dt=dt)
        # A plain trace is its own value; the others have parts.
        return {**state, "trace": trace}, trace if isinstance(tracer, Tracer) else tracer.value(trace)

    def problems(self, *, dt: float) -> list[str]:
        """Report time constants that are not positive."""
        return not_positive(self, *(f.name for f in dataclasses.fields(self) if f.metadata.get("unit") == "ms"))


@register("traced", kind="synapses")
@dataclass(frozen=True)
class TracedSynapses(FadingSynapses):
    """Synapses whose current jumps when a spike arrives, and decays.

    In every step::

        current[i] = Σ_j trace[i,j],    trace = Tracer(tau, scale, base) of kernel[i,j] value[i,j]

    Source: `TracedSynapses` of Spark (Nogarx/Spark).

    State: `kernel` (post, pre), pA; `trace` (post,): the sum of the traces, pA.

    Attributes:
        kernel: the initial kernel, pA.
        tau: the time constant of the decay, ms.
        scale: the fraction of the kernel that a spike adds to the trace.
        base: the resting value of the trace of each pair, pA.
    """

    tau: float = field(default=5.0, metadata={"unit": "ms"})
    scale: float = 1.0
    base: float = field(default=0.0, metadata={"unit": "pA"})

    def tracer(self, num_inputs: int) -> Tracer:
        """Return an exponential tracer."""
        return Tracer(self.tau, self.scale, num_inputs * self.base)


@register("rd_traced", kind="synapses")
@dataclass(frozen=True)
class RDTracedSynapses(FadingSynapses):
    """Synapses whose current rises after a spike arrives, then decays.

    In every step::

        current[i] = Σ_j value(trace[i,j]),    trace = RDTracer(...) of kernel[i,j] value[i,j]

    Source: `RDTracedSynapses` of Spark (Nogarx/Spark).

    State: `kernel` (post, pre), pA; `trace.rise` and `trace.decay` (post,): the sums of their traces, pA.

    Attributes:
        kernel: the initial kernel, pA.
        tau_rise: the time constant of the rise, ms.
        tau_decay: the time constant of the decay, ms.
        scale_rise: the fraction of the kernel that a spike adds to the rising part.
        scale_decay: the fraction of the kernel that a spike adds to the decaying part.
        base_rise: the resting value of the rising part of each pair, pA.
        base_decay: the resting value of the decaying part of each pair, pA.
    """

    tau_rise: float = field(default=1.0, metadata={"unit": "ms"})
    tau_decay: float = field(default=5.0, metadata={"unit": "ms"})
    scale_rise: float = 1.0
    scale_decay: float = 1.0
    base_rise: float = field(default=0.0, metadata={"unit": "pA"})
    base_decay: float = field(default=0.0, metadata={"unit": "pA"})

    def tracer(self, num_inputs: int) -> RDTracer:
        """Return a tracer that rises and decays."""
        bases = num_inputs * self.base_rise, num_inputs * self.base_decay
        return RDTracer(self.tau_rise, self.tau_decay, self.scale_rise, self.scale_decay, *bases)


@register("rfs_traced", kind="synapses")
@dataclass(frozen=True)
class RFSTracedSynapses(FadingSynapses):
    """Synapses whose current rises after a spike arrives, then decays fast at first and slowly later.

    In every step::

        current[i] = Σ_j value(trace[i,j]),    trace = RFSTracer(...) of kernel[i,j] value[i,j]

    Source: `RFSTracedSynapses` of Spark (Nogarx/Spark).

    State: `kernel` (post, pre), pA; `trace.fast` and `trace.slow`, each with `rise` and `decay` (post,), pA.

    Attributes:
        kernel: the initial kernel, pA.
        alpha: the fraction of the fast decay, from 0 to 1.
        tau_rise: the time constant of the rise, ms.
        tau_fast_decay: the time constant of the fast decay, ms.
        tau_slow_decay: the time constant of the slow decay, ms.
        scale_rise: the fraction of the kernel that a spike adds to the rising parts.
        scale_fast_decay: the fraction of the kernel that a spike adds to the fast part.
        scale_slow_decay: the fraction of the kernel that a spike adds to the slow part.
        base_rise: the resting value of the rising parts of each pair, pA.
        base_fast_decay: the resting value of the fast part of each pair, pA.
        base_slow_decay: the resting value of the slow part of each pair, pA.
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
        """Return a mixture of a fast and a slow tracer."""
        rise = num_inputs * self.base_rise
        fast, slow = num_inputs * self.base_fast_decay, num_inputs * self.base_slow_decay
        return RFSTracer(
            self.alpha,
            RDTracer(self.tau_rise, self.tau_fast_decay, self.scale_rise, self.scale_fast_decay, rise, fast),
            RDTracer(self.tau_rise, self.tau_slow_decay, self.scale_rise, self.scale_slow_decay, rise, slow),
        )
