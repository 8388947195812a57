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
Rows = Mapping[str, jax.Array]
"""Of one post neuron: its row of K as `kernel`, in float32, and of each leaf that the rule keeps for each pair."""
OnSpike = Callable[[jax.Array, Rows, Arrivals], jax.Array]
"""dK of all pairs of one post neuron that spiked, of the neuron's number, its rows and what arrived at it."""


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


class KernelChange(abc.ABC):
    """What one step does to the pairs: a rule's equations, which every way to compute them takes from here.

    `to_all` computes all pairs at once, as plain JAX does; `to_row` those of one post neuron, for a pass over the pairs.
    """

    pairs: Mapping[str, Callable[[jax.Array, jax.Array], jax.Array]] = {}
    """How each leaf that the rule keeps for each pair goes on, of K before it changes and of itself."""

    @abc.abstractmethod
    def to_all(self, kernel: jax.Array, pairs: Rows, arrivals: Arrivals, spikes: jax.Array, *, dt: float) -> jax.Array:
        """The kernel after the step.

        Args:
            kernel: K, (post, pre).
            pairs: what the rule keeps for each pair, after the step.
            arrivals: the spikes that arrived.
            spikes: which post neurons spiked.
            dt: the time of one step, ms.
        """

    @abc.abstractmethod
    def to_row(self, neuron: jax.Array, rows: Rows, arrived: Arrivals, *, spiked: bool, dt: float) -> jax.Array:
        """One row of the kernel after the step, in float32.

        Args:
            neuron: the number of the post neuron.
            rows: its rows, those that the rule keeps for each pair after the step.
            arrived: the spikes that arrived at it.
            spiked: whether it spiked.
            dt: the time of one step, ms.
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
        """One step."""
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
        pre_tau: time constant of the pre trace, ms.
        post_tau: time constant of the post trace, ms.
    """

    by_neuron: ClassVar[tuple[str, ...]] = ("post_trace",)

    pre_tau: float = field(default=20.0, metadata={"unit": "ms"})
    post_tau: float = field(default=20.0, metadata={"unit": "ms"})

    def init(self, key: jax.Array, units: int, num_inputs: int, num_steps: int, *, dt: float, dtype: Any) -> State:
        """No traces."""
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
        """Time constants that are not positive."""
        return not_positive(self, "pre_tau", "post_tau")


def one_number(value: jax.Array) -> jax.Array:
    """What a port for one number reads, in float32."""
    return value.reshape(()).astype(jnp.float32)


@dataclass(frozen=True)
class ChangeOnSpikes(KernelChange):
    """K' = max(K + dt dK, 0), and at most the ceiling, where dK is 0 but where a spike arrived or a post neuron spiked.

    Attributes:
        on_arrival: dK, for each post neuron, of a pair where a spike arrived and the post neuron did not spike:
            (post,), or (post, 2), of an excitatory and of an inhibitory pre neuron.
        on_spike: dK of all pairs of one post neuron that spiked.
        ceiling: the greatest value of K, of the shape of `on_arrival`; None for none.
        pairs: as those of `KernelChange`.
    """

    on_arrival: jax.Array
    on_spike: OnSpike
    ceiling: jax.Array | None = None
    pairs: Mapping[str, Callable[[jax.Array, jax.Array], jax.Array]] = field(default_factory=dict)

    def to_all(self, kernel: jax.Array, pairs: Rows, arrivals: Arrivals, spikes: jax.Array, *, dt: float) -> jax.Array:
        """The kernel after the step; the rows of neurons that spiked one by one."""
        units, dtype = len(kernel), kernel.dtype
        # Those that spiked, then `units` as often as there are others, and once more after all.
        numbers = jnp.where(spikes, jnp.arange(units, dtype=jnp.uint32), jnp.uint32(units))
        spiked = jax.lax.optimization_barrier(jnp.pad(jnp.sort(numbers), (0, 1), constant_values=units))

        def change_row(carried: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            place, kernel = carried
            neuron = row_of(spiked, place)
            row = row_of(kernel, neuron).astype(jnp.float32)
            rows = {"kernel": row, **{name: row_of(leaf, neuron) for name, leaf in pairs.items()}}
            row = row + dt * self.on_spike(neuron, rows, arrivals.at(neuron))
            return place + 1, jax.lax.dynamic_update_index_in_dim(kernel, row.astype(dtype), neuron, 0)

        # Few neurons spike in a step: what only they need is computed for their rows alone, in place.
        _, kernel = jax.lax.while_loop(
            lambda carried: row_of(spiked, carried[0]) < units, change_row, (jnp.uint32(0), kernel)
        )
        # Their rows are done but for the maximum: nothing is added to them.
        on_arrival = jnp.where(spikes if self.on_arrival.ndim == 1 else spikes[:, None], 0, dt * self.on_arrival)
        arrived = jnp.where(arrivals.arrived, to_pairs(on_arrival, arrivals.inhibitory), 0)
        changed = jnp.maximum(kernel.astype(jnp.float32) + arrived, 0)
        if self.ceiling is not None:
            changed = jnp.minimum(changed, to_pairs(self.ceiling, arrivals.inhibitory))
        return changed.astype(dtype)

    def to_row(self, neuron: jax.Array, rows: Rows, arrived: Arrivals, *, spiked: bool, dt: float) -> jax.Array:
        """One row of the kernel after the step."""

        def of_row(by_post: jax.Array) -> jax.Array:
            both = row_of(by_post, neuron)
            return both if both.ndim == 0 else jnp.where(arrived.inhibitory, both[1], both[0])

        if spiked:
            added = dt * self.on_spike(neuron, rows, arrived)
        else:
            added = jnp.where(arrived.arrived, dt * of_row(self.on_arrival), 0)
        changed = jnp.maximum(rows["kernel"] + added, 0)
        return changed if self.ceiling is None else jnp.minimum(changed, of_row(self.ceiling))


@dataclass(frozen=True)
class ChangeEverywhere(KernelChange):
    """K' = max(K + dt dK, 0), where any pair may change in any step.

    Attributes:
        change: dK, of K, of where a spike arrived, and of a function that gives what post neurons have to their pairs.
    """

    change: Callable[[jax.Array, jax.Array, Callable[[jax.Array], jax.Array]], jax.Array]

    def to_all(self, kernel: jax.Array, pairs: Rows, arrivals: Arrivals, spikes: jax.Array, *, dt: float) -> jax.Array:
        """The kernel after the step."""
        before = kernel.astype(jnp.float32)
        change = self.change(before, arrivals.arrived, lambda by_post: by_post[:, None])
        return jnp.maximum(before + dt * change, 0).astype(kernel.dtype)

    def to_row(self, neuron: jax.Array, rows: Rows, arrived: Arrivals, *, spiked: bool, dt: float) -> jax.Array:
        """One row of the kernel after the step."""
        change = self.change(rows["kernel"], arrived.arrived, lambda by_post: row_of(by_post, neuron))
        return jnp.maximum(rows["kernel"] + dt * change, 0)


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
