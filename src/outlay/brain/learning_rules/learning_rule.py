"""What a learning rule is, and how a kernel is changed only where something happened."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from outlay.brain.delays import Arrivals
from outlay.brain.module import Component, Port, State, not_positive
from outlay.brain.traces import Tracer

Read = Mapping[str, jax.Array]
"""What a neuron reads in a step, by port."""
OnSpike = Callable[[jax.Array, jax.Array, Arrivals], jax.Array]
"""dK of all pairs of one post neuron that spiked, of the neuron's number, its row of K and what arrived at it."""


class LearningRule(Component, abc.ABC):
    """How a kernel K changes: K' = max(K + dt dK, 0), with dK of the spikes that arrive and of those that leave.

    In the equations of the rules, at post neuron i and pre neuron j, s[i,j] is 1 where a spike arrives in this step and
    z[i] is 1 where the neuron spiked in it; a trace with a prime has taken them in. pre'[i,j] = Tracer(pre_tau, scale
    1/pre_tau) of s[i,j], which is that of the pre neuron's own spikes, as many steps ago as the delay: it is kept once
    for each pre neuron, with its past.

    Attributes:
        reads: ports that the neuron reads for the rule.
        eta: the learning rate, unless the rule says another `rate`.
    """

    reads: ClassVar[Mapping[str, Port]] = {}
    eta: float

    def rate(self, read: Read) -> Any:
        """The learning rate of this step: the rule's `eta`.

        Args:
            read: what the neuron read in it.
        """
        return self.eta

    @abc.abstractmethod
    def init(self, key: jax.Array, units: int, num_inputs: int, num_steps: int, *, dt: float, dtype: Any) -> State:
        """The state before the first step.

        Args:
            key: the PRNG key.
            units: post neurons.
            num_inputs: pre neurons.
            num_steps: the longest delay in steps.
            dt: the time of one step, ms.
            dtype: of the traces.
        """

    @abc.abstractmethod
    def step(
        self, state: State, kernel: jax.Array, arrivals: Arrivals, spikes: jax.Array, read: Read, *, dt: float
    ) -> tuple[State, jax.Array]:
        """The state and the kernel after a step.

        Args:
            state: the state before it.
            kernel: the kernel that was used in it, (post, pre).
            arrivals: the spikes that arrived in it.
            spikes: which post neurons spiked in it, bool.
            read: what the neuron read in it from the ports of `reads`; and, as `inhibitory`, which post neurons are.
            dt: the time of one step, ms.
        """


@dataclass(frozen=True)
class Modulated(LearningRule, abc.ABC):
    """A rule whose learning rate is multiplied by a number that the neuron reads in every step, its third factor."""

    reads: ClassVar[Mapping[str, Port]] = {"modulation": Port("values")}

    def rate(self, read: Read) -> Any:
        """The learning rate of this step: eta × modulation."""
        return super().rate(read) * one_number(read["modulation"])


@dataclass(frozen=True)
class TwoTraceRule(LearningRule, abc.ABC):
    """A rule of the traces at both ends of a synapse: one of each post neuron, and one of each pre neuron.

    Attributes:
        pre_tau: time constant of the pre trace, ms.
        post_tau: time constant of the post trace, ms.
    """

    by_neuron: ClassVar[tuple[str, ...]] = ("post_trace",)

    pre_tau: float = field(default=20.0, metadata={"unit": "ms"})
    post_tau: float = field(default=20.0, metadata={"unit": "ms"})

    def init(self, key: jax.Array, units: int, num_inputs: int, num_steps: int, *, dt: float, dtype: Any) -> State:
        """No traces."""
        return {"post_trace": jnp.zeros(units, dtype), "pre_trace": no_past(num_inputs, num_steps, dtype)}

    def step(
        self, state: State, kernel: jax.Array, arrivals: Arrivals, spikes: jax.Array, read: Read, *, dt: float
    ) -> tuple[State, jax.Array]:
        """One step."""
        past = push_trace(state["pre_trace"], arrivals, unit_tracer(self.pre_tau), dt=dt)
        post = unit_tracer(self.post_tau).step(state["post_trace"], spikes, dt=dt)
        on_arrival, on_spike = self.changes(self.rate(read), post.astype(jnp.float32), past)
        kernel = change_kernel(kernel, arrivals, spikes, on_arrival, on_spike, dt=dt)
        return {"post_trace": post, "pre_trace": past}, kernel

    @abc.abstractmethod
    def changes(self, rate: Any, post: jax.Array, past: jax.Array) -> tuple[jax.Array, OnSpike]:
        """DK where a spike arrives and where a post neuron spikes, as `change_kernel` takes them.

        Args:
            rate: the learning rate of this step.
            post: the trace of each post neuron, in float32.
            past: the traces of pre neurons, newest first.
        """

    def problems(self, *, dt: float) -> list[str]:
        """Time constants that are not positive."""
        return not_positive(self, "pre_tau", "post_tau")


def one_number(value: jax.Array) -> jax.Array:
    """What a port for one number reads, in float32."""
    return value.reshape(()).astype(jnp.float32)


def change_kernel(
    kernel: jax.Array,
    arrivals: Arrivals,
    spikes: jax.Array,
    on_arrival: jax.Array,
    on_spike: OnSpike,
    *,
    dt: float,
    ceiling: jax.Array | None = None,
) -> jax.Array:
    """The kernel after a step: max(K + dt dK, 0), and at most the ceiling.

    Args:
        kernel: K, (post, pre).
        arrivals: the spikes that arrived.
        spikes: which post neurons spiked.
        on_arrival: dK, for each post neuron, of a pair where a spike arrived and the post neuron did not spike:
            (post,), or (post, 2), of an excitatory and of an inhibitory pre neuron.
        on_spike: dK of all pairs of one post neuron that spiked.
        dt: the time of one step, ms.
        ceiling: the greatest value of K, of the shape of `on_arrival`; None for none.
    """
    units, dtype = len(kernel), kernel.dtype
    # Those that spiked, then `units` as often as there are others, and once more after all.
    numbers = jnp.where(spikes, jnp.arange(units, dtype=jnp.uint32), jnp.uint32(units))
    spiked = jax.lax.optimization_barrier(jnp.pad(jnp.sort(numbers), (0, 1), constant_values=units))

    def change_row(carried: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        place, kernel = carried
        neuron = row_of(spiked, place)
        row = row_of(kernel, neuron).astype(jnp.float32)
        row = row + dt * on_spike(neuron, row, arrivals.at(neuron))
        return place + 1, jax.lax.dynamic_update_index_in_dim(kernel, row.astype(dtype), neuron, 0)

    # Few neurons spike in a step: what only they need is computed for their rows alone, in place.
    _, kernel = jax.lax.while_loop(
        lambda carried: row_of(spiked, carried[0]) < units, change_row, (jnp.uint32(0), kernel)
    )
    # Their rows are done but for the maximum: nothing is added to them.
    on_arrival = jnp.where(spikes if on_arrival.ndim == 1 else spikes[:, None], 0, dt * on_arrival)
    arrived = jnp.where(arrivals.arrived, to_pairs(on_arrival, arrivals.inhibitory), 0)
    changed = jnp.maximum(kernel.astype(jnp.float32) + arrived, 0)
    if ceiling is not None:
        changed = jnp.minimum(changed, to_pairs(ceiling, arrivals.inhibitory))
    return changed.astype(dtype)


def to_pairs(by_post: jax.Array, inhibitory: jax.Array) -> jax.Array:
    """What post neurons have, for their pairs: (post, 1) of (post,), and (post, pre) of (post, 2).

    Args:
        by_post: (post,), or (post, 2): for excitatory and for inhibitory pre neurons.
        inhibitory: which pre neurons are inhibitory.
    """
    if by_post.ndim == 1:
        return by_post[:, None]
    return jnp.where(inhibitory[None], by_post[:, 1:], by_post[:, :1])


def row_of(array: jax.Array, neuron: jax.Array) -> jax.Array:
    """What is about one neuron in an array about all."""
    # Plain indexing would also look after negative numbers and numbers out of bounds, with an operation each.
    return jax.lax.dynamic_index_in_dim(array, neuron, keepdims=False)


def unit_tracer(tau: float) -> Tracer:
    """A trace to which a spike adds 1/tau: at a steady rate it is that rate, in spikes/ms."""
    return Tracer(tau, scale=1 / tau)


def no_past(num_inputs: int, num_steps: int, dtype: Any) -> jax.Array:
    """The traces of pre neurons now and in the past steps that delays reach back to, newest first."""
    return jnp.zeros((num_steps, num_inputs), dtype)


def push_trace(past: jax.Array, arrivals: Arrivals, tracer: Tracer, *, dt: float) -> jax.Array:
    """The traces of pre neurons after one more step."""
    newest = tracer.step(past[0], arrivals.sent, dt=dt)
    # Else every pair would compute the trace of its pre neuron anew.
    return jax.lax.optimization_barrier(jnp.concatenate([newest[None], past[:-1]]))
