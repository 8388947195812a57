"""What a learning rule is, and how a kernel is changed only where something happened."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from outlay.brain.delays import Arrivals
from outlay.brain.learning_rules.kernel_change import ChangeOnSpikes, KernelChange, OnSpike
from outlay.brain.module import Component, Port, State, not_positive
from outlay.brain.traces import Tracer

Read = Mapping[str, jax.Array]
"""What a neuron reads in a step, by port."""


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
        """Return the initial state.

        Args:
            key: the PRNG key.
            units: post neurons.
            num_inputs: pre neurons.
            num_steps: the longest delay in steps.
            dt: the duration of a step, ms.
            dtype: of the traces.
        """

    @abc.abstractmethod
    def step(
        self, state: State, kernel: jax.Array, arrivals: Arrivals, spikes: jax.Array, read: Read, *, dt: float
    ) -> tuple[State, jax.Array]:
        """The state and the kernel after a step.

        Args:
            state: the state before the step.
            kernel: the kernel that was used in it, (post, pre).
            arrivals: the spikes that arrived in it.
            spikes: which post neurons spiked in it, bool.
            read: what the neuron read in it from the ports of `reads`; and, as `inhibitory`, which post neurons are.
            dt: the duration of a step, ms.
        """


class PairwiseRule(LearningRule, abc.ABC):
    """A rule that says what a step does to the pairs as a `KernelChange`, which can be computed in several ways."""

    @abc.abstractmethod
    def change(
        self, state: State, arrivals: Arrivals, spikes: jax.Array, read: Read, *, dt: float
    ) -> tuple[State, KernelChange]:
        """The state after a step, but for what it keeps for each pair; and what the step does to the pairs.

        Args: as those of `step`.
        """

    def step(
        self, state: State, kernel: jax.Array, arrivals: Arrivals, spikes: jax.Array, read: Read, *, dt: float
    ) -> tuple[State, jax.Array]:
        """Advance the state by one step."""
        after, change = self.change(state, arrivals, spikes, read, dt=dt)
        pairs = {name: follow(kernel, state[name]) for name, follow in change.pairs.items()}
        return {**after, **pairs}, change.to_all(kernel, pairs, arrivals, spikes, dt=dt)


@dataclass(frozen=True)
class Modulated(LearningRule, abc.ABC):
    """A rule whose learning rate is multiplied by a number that the neuron reads in every step, its third factor."""

    reads: ClassVar[Mapping[str, Port]] = {"modulation": Port("values")}

    def rate(self, read: Read) -> Any:
        """The learning rate of this step: eta × modulation."""
        return super().rate(read) * one_number(read["modulation"])


@dataclass(frozen=True)
class TwoTraceRule(PairwiseRule, abc.ABC):
    """A rule of the traces at both ends of a synapse: one of each post neuron, and one of each pre neuron.

    Attributes:
        pre_tau: the time constant of the pre trace, ms.
        post_tau: the time constant of the post trace, ms.
    """

    by_neuron: ClassVar[tuple[str, ...]] = ("post_trace",)

    pre_tau: float = field(default=20.0, metadata={"unit": "ms"})
    post_tau: float = field(default=20.0, metadata={"unit": "ms"})

    def init(self, key: jax.Array, units: int, num_inputs: int, num_steps: int, *, dt: float, dtype: Any) -> State:
        """Return the initial state: zero traces."""
        return {"post_trace": jnp.zeros(units, dtype), "pre_trace": no_past(num_inputs, num_steps, dtype)}

    def change(
        self, state: State, arrivals: Arrivals, spikes: jax.Array, read: Read, *, dt: float
    ) -> tuple[State, KernelChange]:
        """Both traces, and what spikes at either end do."""
        past = push_trace(state["pre_trace"], arrivals, unit_tracer(self.pre_tau), dt=dt)
        post = unit_tracer(self.post_tau).step(state["post_trace"], spikes, dt=dt)
        on_arrival, on_spike = self.changes(self.rate(read), post.astype(jnp.float32), past)
        return {"post_trace": post, "pre_trace": past}, ChangeOnSpikes(on_arrival, on_spike)

    @abc.abstractmethod
    def changes(self, rate: Any, post: jax.Array, past: jax.Array) -> tuple[jax.Array, OnSpike]:
        """DK where a spike arrives and where a post neuron spikes, as `ChangeOnSpikes` takes them.

        Args:
            rate: the learning rate of this step.
            post: the trace of each post neuron, in float32.
            past: the traces of pre neurons, newest first.
        """

    def problems(self, *, dt: float) -> list[str]:
        """Report time constants that are not positive."""
        return not_positive(self, "pre_tau", "post_tau")


def one_number(value: jax.Array) -> jax.Array:
    """What a port for one number reads, in float32."""
    return value.reshape(()).astype(jnp.float32)


def unit_tracer(tau: float) -> Tracer:
    """A trace to which a spike adds 1/tau: at a steady rate it is that rate, in spikes/ms."""
    return Tracer(tau, scale=1 / tau)


def no_past(num_inputs: int, num_steps: int, dtype: Any) -> jax.Array:
    """The traces of pre neurons now and in the past steps that delays reach back to, newest first."""
    return jnp.zeros((num_steps, num_inputs), dtype)


def push_trace(past: jax.Array, arrivals: Arrivals, tracer: Tracer, *, dt: float) -> jax.Array:
    """The traces of pre neurons after one more step."""
    newest = tracer.step(past[0], arrivals.sent, dt=dt)
    # Without the barrier XLA fuses this into its consumer and recomputes the trace for every pair.
    return jax.lax.optimization_barrier(jnp.concatenate([newest[None], past[:-1]]))
