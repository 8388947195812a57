"""Zenke's rule."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from outlay.brain.delays import Arrivals
from outlay.brain.learning_rules.kernel_change import ChangeOnSpikes, KernelChange, Rows, row_of
from outlay.brain.learning_rules.learning_rule import (
    Modulated,
    PairwiseRule,
    Read,
    no_past,
    push_trace,
    unit_tracer,
)
from outlay.brain.module import State, not_positive
from outlay.brain.registry import register


@register("zenke", kind="learning_rule")
@dataclass(frozen=True)
class ZenkeRule(PairwiseRule):
    """Zenke's rule: triplet potentiation, doublet depression, and two terms that keep a network stable.

    In every step::

        T'      = Tracer(target_tau, scale 1/target_tau) of K - p T (1/4 - T) (1/2 - T)
        dK[i,j] = eta (a post_slow'[i] z[i] pre'[i,j]  +  b post'[i] s[i,j]
                       + c (K - T')[i,j] post'[i]³ z[i]  +  d s[i,j])
        K'      = max(K + dt dK, 0)

    with traces to which a spike adds 1/tau. a is triplet potentiation, b doublet depression, c heterosynaptic
    plasticity towards the bistable target T, d a term for each arriving spike.

    Sources: `ZenkeRule` of Spark (Nogarx/Spark); Zenke, Agnes and Gerstner, Nature Communications 6 (2015) 6922.

    State: `post_trace` and `post_slow_trace` (post,), 1/ms; `target_trace` (post, pre), T in pA; `pre_trace`
    (steps, pre), 1/ms: that of each pre neuron now and in past steps.

    Attributes:
        pre_tau: the time constant of the pre trace, ms.
        post_tau: the time constant of the post trace, ms.
        post_slow_tau: the time constant of the slow post trace, ms.
        target_tau: the time constant of the target, ms.
        a: the weight of triplet potentiation.
        b: the weight of doublet depression.
        c: the weight of heterosynaptic plasticity towards the target.
        d: the weight of an arriving spike.
        p: the strength of the bistability of the target.
        eta: the learning rate; called gamma or eta in Spark's files.
    """

    by_neuron: ClassVar[tuple[str, ...]] = ("post_trace", "post_slow_trace", "target_trace")

    pre_tau: float = field(default=20.0, metadata={"unit": "ms"})
    post_tau: float = field(default=20.0, metadata={"unit": "ms"})
    post_slow_tau: float = field(default=20.0, metadata={"unit": "ms"})
    target_tau: float = field(default=20000.0, metadata={"unit": "ms"})
    a: float = 1.0
    b: float = -1.0
    c: float = -1.0
    d: float = 1.0
    p: float = 20.0
    eta: float = 0.1

    def init(self, key: jax.Array, units: int, num_inputs: int, num_steps: int, *, dt: float, dtype: Any) -> State:
        """Return the initial state: zero traces."""
        return {
            "post_trace": jnp.zeros(units, dtype),
            "post_slow_trace": jnp.zeros(units, dtype),
            "target_trace": jnp.zeros((units, num_inputs), dtype),
            "pre_trace": no_past(num_inputs, num_steps, dtype),
        }

    def change(
        self, state: State, arrivals: Arrivals, spikes: jax.Array, read: Read, *, dt: float
    ) -> tuple[State, KernelChange]:
        """Return the state with the traces, and the changes by spikes at either end; `pairs` advances the targets."""
        past = push_trace(state["pre_trace"], arrivals, unit_tracer(self.pre_tau), dt=dt)
        post = unit_tracer(self.post_tau).step(state["post_trace"], spikes, dt=dt)
        slow = unit_tracer(self.post_slow_tau).step(state["post_slow_trace"], spikes, dt=dt)
        rate = self.rate(read)
        arrival = rate * (self.b * post.astype(jnp.float32) + self.d)
        triplet = rate * self.a * slow.astype(jnp.float32)
        pull = rate * self.c * post.astype(jnp.float32) ** 3

        def on_spike(neuron: jax.Array, rows: Rows, arrived: Arrivals) -> jax.Array:
            of_arrival = jnp.where(arrived.arrived, row_of(arrival, neuron), 0)
            return (
                of_arrival
                + row_of(triplet, neuron) * arrived.delayed(past)
                + row_of(pull, neuron) * (rows["kernel"] - rows["target_trace"])
            )

        def target(kernel: jax.Array, before: jax.Array) -> jax.Array:
            return self._target(before, kernel, dt)

        after = {"post_trace": post, "post_slow_trace": slow, "pre_trace": past}
        return after, ChangeOnSpikes(arrival, on_spike, pairs={"target_trace": target})

    def _target(self, target: jax.Array, kernel: jax.Array, dt: float) -> jax.Array:
        before = target.astype(jnp.float32)
        fed = kernel.astype(jnp.float32) - self.p * before * (0.25 - before) * (0.5 - before)
        left = math.exp(-dt / self.target_tau) * before
        return (left + fed / self.target_tau).astype(target.dtype)

    def problems(self, *, dt: float) -> list[str]:
        """Report time constants that are not positive."""
        return not_positive(self, "pre_tau", "post_tau", "post_slow_tau", "target_tau")


@register("modulated_zenke", kind="learning_rule")
@dataclass(frozen=True)
class ModulatedZenkeRule(Modulated, ZenkeRule):
    """Zenke's rule with all terms proportional to a modulation M; the target evolves independently of M.

    In every step::

        T'      = Tracer(target_tau, scale 1/target_tau) of K - p T (1/4 - T) (1/2 - T)
        dK[i,j] = eta M (a post_slow'[i] z[i] pre'[i,j]  +  b post'[i] s[i,j]
                         + c (K - T')[i,j] post'[i]³ z[i]  +  d s[i,j])
        K'      = max(K + dt dK, 0)

    with traces to which a spike adds 1/tau. The neuron has the input port `modulation`, one number.

    Sources: `ModulatedZenkeRule` of Spark (Nogarx/Spark) since 1.1.1; Zenke, Agnes and Gerstner, Nature Communications
    6 (2015) 6922.

    State: `post_trace` and `post_slow_trace` (post,), 1/ms; `target_trace` (post, pre), T in pA; `pre_trace`
    (steps, pre), 1/ms: that of each pre neuron now and in past steps.

    Attributes:
        pre_tau: the time constant of the pre trace, ms.
        post_tau: the time constant of the post trace, ms.
        post_slow_tau: the time constant of the slow post trace, ms.
        target_tau: the time constant of the target, ms.
        a: the weight of triplet potentiation.
        b: the weight of doublet depression.
        c: the weight of heterosynaptic plasticity towards the target.
        d: the weight of an arriving spike.
        p: the strength of the bistability of the target.
        eta: the learning rate.
    """
