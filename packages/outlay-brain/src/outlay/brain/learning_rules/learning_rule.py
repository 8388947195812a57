"""The base classes of learning rules."""

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
"""The inputs of a neuron in a step, by port."""


class LearningRule(Component, abc.ABC):
    """A rule for the change of a kernel K: K' = max(K + dt dK, 0), with dK from arriving and emitted spikes.

    In the equations, for post neuron i and pre neuron j, s[i,j] is 1 if a spike arrives in this step and z[i] is 1 if
    the post neuron spikes; a primed trace includes them. pre'[i,j] = Tracer(pre_tau, scale 1/pre_tau) of s[i,j] equals
    the trace of the pre neuron's own spikes, delayed; so it is stored once per pre neuron, with its past.

    Attributes:
        reads: the input ports that the neuron needs for the rule.
        eta: the learning rate, unless the rule overrides `rate`.
    """

    reads: ClassVar[Mapping[str, Port]] = {}
    eta: float

    def rate(self, read: Read) -> Any:
        """Return the learning rate of this step: the rule's `eta`.

        Args:
            read: the inputs of the neuron.
        """
        return self.eta

    @abc.abstractmethod
    def init(self, key: jax.Array, units: int, num_inputs: int, num_steps: int, *, dt: float, dtype: Any) -> State:
        """Return the initial state.

        Args:
            key: the PRNG key.
            units: the number of post neurons.
            num_inputs: the number of pre neurons.
            num_steps: the longest delay in steps.
            dt: the duration of a step, ms.
            dtype: the dtype of the traces.
        """

    @abc.abstractmethod
    def step(
        self, state: State, kernel: jax.Array, arrivals: Arrivals, spikes: jax.Array, read: Read, *, dt: float
    ) -> tuple[State, jax.Array]:
        """Return the state and the kernel after a step.

        Args:
            state: the state before the step.
            kernel: the kernel of the step, (post, pre).
            arrivals: the spikes that arrived.
            spikes: which post neurons spiked, bool.
            read: the inputs from the ports of `reads`, and as `inhibitory` which post neurons are inhibitory.
            dt: the duration of a step, ms.
        """


class PairwiseRule(LearningRule, abc.ABC):
    """A rule that describes the change of the pairs as a `KernelChange`, which has several implementations."""

    @abc.abstractmethod
    def change(
        self, state: State, arrivals: Arrivals, spikes: jax.Array, read: Read, *, dt: float
    ) -> tuple[State, KernelChange]:
        """Return the state after a step, without per-pair leaves, and the change of the pairs.

        Args: as for `step`.
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
    """A rule whose learning rate is multiplied by an input of the neuron, the third factor."""

    reads: ClassVar[Mapping[str, Port]] = {"modulation": Port("values")}

    def rate(self, read: Read) -> Any:
        """Return the learning rate of this step: eta × modulation."""
        return super().rate(read) * one_number(read["modulation"])


@dataclass(frozen=True)
class TwoTraceRule(PairwiseRule, abc.ABC):
    """A rule with a trace at each end of a synapse: one per post neuron, and one per pre neuron.

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
        """Return the state with both traces, and the changes by spikes at either end."""
        past = push_trace(state["pre_trace"], arrivals, unit_tracer(self.pre_tau), dt=dt)
        post = unit_tracer(self.post_tau).step(state["post_trace"], spikes, dt=dt)
        on_arrival, on_spike = self.changes(self.rate(read), post.astype(jnp.float32), past)
        return {"post_trace": post, "pre_trace": past}, ChangeOnSpikes(on_arrival, on_spike)

    @abc.abstractmethod
    def changes(self, rate: Any, post: jax.Array, past: jax.Array) -> tuple[jax.Array, OnSpike]:
        """Return dK where a spike arrives and where a post neuron spikes, for `ChangeOnSpikes`.

        Args:
            rate: the learning rate of this step.
            post: the trace of each post neuron, in float32.
            past: the traces of pre neurons, newest first.
        """

    def problems(self, *, dt: float) -> list[str]:
        """Report time constants that are not positive."""
        return not_positive(self, "pre_tau", "post_tau")


def one_number(value: jax.Array) -> jax.Array:
    """Read a port with one number, in float32."""
    return value.reshape(()).astype(jnp.float32)


def unit_tracer(tau: float) -> Tracer:
    """Return a tracer to which a spike adds 1/tau: at a constant rate the trace equals that rate, in spikes/ms."""
    return Tracer(tau, scale=1 / tau)


def no_past(num_inputs: int, num_steps: int, dtype: Any) -> jax.Array:
    """Return zero traces of pre neurons for this and the past steps that delays reach, newest first."""
    return jnp.zeros((num_steps, num_inputs), dtype)


def push_trace(past: jax.Array, arrivals: Arrivals, tracer: Tracer, *, dt: float) -> jax.Array:
    """Push the traces of pre neurons of one more step."""
    newest = tracer.step(past[0], arrivals.sent, dt=dt)
    # Without the barrier XLA fuses this into its consumer and recomputes the trace for every pair.
    return jax.lax.optimization_barrier(jnp.concatenate([newest[None], past[:-1]]))
