"""Hebb's rule, also with reward or modulation, and Oja's rule, which keeps kernels bounded."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from outlay.brain.delays import Arrivals
from outlay.brain.learning_rules.kernel_change import ChangeEverywhere, KernelChange, OnSpike, Rows, row_of
from outlay.brain.learning_rules.learning_rule import (
    Modulated,
    PairwiseRule,
    Read,
    TwoTraceRule,
    one_number,
    unit_tracer,
)
from outlay.brain.module import Port, State, not_positive
from outlay.brain.registry import register


@dataclass(frozen=True)
class PairRule(TwoTraceRule, abc.ABC):
    """A rule that pairs a spike at one end with the trace at the other end: rate × (post' s + z pre')."""

    def changes(self, rate: Any, post: jax.Array, past: jax.Array) -> tuple[jax.Array, OnSpike]:
        """Return both terms where a post neuron spikes, and the first one elsewhere."""

        def on_spike(neuron: jax.Array, rows: Rows, arrived: Arrivals) -> jax.Array:
            return rate * (jnp.where(arrived.arrived, row_of(post, neuron), 0) + arrived.delayed(past))

        return rate * post, on_spike


@register("hebbian", kind="learning_rule")
@dataclass(frozen=True)
class HebbianRule(PairRule):
    """Hebb's rule: a spike at either end of a synapse strengthens it if the other end spiked recently.

    In every step::

        dK[i,j] = eta (post'[i] s[i,j] + z[i] pre'[i,j])
        K'      = max(K + dt dK, 0)

    with traces to which a spike adds 1/tau.

    Sources: `HebbianRule` of Spark (Nogarx/Spark); Gerstner et al., Neuronal Dynamics, chapter 19.2.

    State: `post_trace` (post,), 1/ms; `pre_trace` (steps, pre), 1/ms: that of each pre neuron now and in past steps.

    Attributes:
        pre_tau: the time constant of the pre trace, ms.
        post_tau: the time constant of the post trace, ms.
        eta: the learning rate.
    """

    eta: float = 0.1


@register("three_factor", kind="learning_rule")
@dataclass(frozen=True)
class ThreeFactorRule(PairRule):
    """Hebb's rule with a learning rate proportional to a reward.

    In every step::

        dK[i,j] = gamma (reward + 0.1) (post'[i] s[i,j] + z[i] pre'[i,j])
        K'      = max(K + dt dK, 0)

    with traces to which a spike adds 1/tau. The neuron has the input port `reward`, one number.

    Sources: `ThreeFactorHebbianRule` of Spark (Nogarx/Spark); Gerstner et al., Neuronal Dynamics, chapter 19.4.

    State: `post_trace` (post,), 1/ms; `pre_trace` (steps, pre), 1/ms: that of each pre neuron now and in past steps.

    Attributes:
        pre_tau: the time constant of the pre trace, ms.
        post_tau: the time constant of the post trace, ms.
        gamma: the learning rate.
    """

    reads: ClassVar[Mapping[str, Port]] = {"reward": Port("values")}

    pre_tau: float = field(default=10.0, metadata={"unit": "ms"})
    post_tau: float = field(default=10.0, metadata={"unit": "ms"})
    gamma: float = 0.1

    def rate(self, read: Read) -> Any:
        """Return the learning rate of this step."""
        return self.gamma * (one_number(read["reward"]) + 0.1)


@register("modulated_hebbian", kind="learning_rule")
@dataclass(frozen=True)
class ModulatedHebbianRule(Modulated, HebbianRule):
    """Hebb's rule with a learning rate proportional to a modulation M, which may be negative.

    In every step::

        dK[i,j] = eta M (post'[i] s[i,j] + z[i] pre'[i,j])
        K'      = max(K + dt dK, 0)

    with traces to which a spike adds 1/tau. The neuron has the input port `modulation`, one number.

    Sources: `ModulatedHebbianRule` of Spark (Nogarx/Spark) since 1.1.1; Gerstner et al., Neuronal Dynamics, chapter
    19.4.

    State: `post_trace` (post,), 1/ms; `pre_trace` (steps, pre), 1/ms: that of each pre neuron now and in past steps.

    Attributes:
        pre_tau: the time constant of the pre trace, ms.
        post_tau: the time constant of the post trace, ms.
        eta: the learning rate.
    """


@register("oja", kind="learning_rule")
@dataclass(frozen=True)
class OjaRule(PairwiseRule):
    """Hebb's rule with a decay that keeps kernels bounded.

    In every step::

        dK[i,j] = eta (post'[i] s[i,j] - K[i,j] post'[i]²)
        K'      = max(K + dt dK, 0)

    with a trace to which a spike adds 1/tau.

    Sources: `OjaRule` of Spark (Nogarx/Spark); Oja, J. Math. Biol. 15 (1982) 267.

    State: `post_trace` (post,), 1/ms.

    Attributes:
        post_tau: the time constant of the post trace, ms.
        eta: the learning rate.
    """

    by_neuron: ClassVar[tuple[str, ...]] = ("post_trace",)

    post_tau: float = field(default=20.0, metadata={"unit": "ms"})
    eta: float = 0.1

    def init(self, key: jax.Array, units: int, num_inputs: int, num_steps: int, *, dt: float, dtype: Any) -> State:
        """Return the initial state: a zero trace."""
        return {"post_trace": jnp.zeros(units, dtype)}

    def change(
        self, state: State, arrivals: Arrivals, spikes: jax.Array, read: Read, *, dt: float
    ) -> tuple[State, KernelChange]:
        """Advance the trace; every pair may change."""
        post = unit_tracer(self.post_tau).step(state["post_trace"], spikes, dt=dt)
        rate, trace = self.rate(read), post.astype(jnp.float32)

        def everywhere(kernel: jax.Array, arrived: Arrivals, of_post: Callable[[jax.Array], jax.Array]) -> jax.Array:
            return rate * (jnp.where(arrived.arrived, of_post(trace), 0) - kernel * of_post(trace) ** 2)

        return {"post_trace": post}, ChangeEverywhere(everywhere)

    def problems(self, *, dt: float) -> list[str]:
        """Report a time constant that is not positive."""
        return not_positive(self, "post_tau")


@register("modulated_oja", kind="learning_rule")
@dataclass(frozen=True)
class ModulatedOjaRule(Modulated, OjaRule):
    """Oja's rule with learning and decay proportional to a modulation M.

    In every step::

        dK[i,j] = eta M (post'[i] s[i,j] - K[i,j] post'[i]²)
        K'      = max(K + dt dK, 0)

    with a trace to which a spike adds 1/tau. The neuron has the input port `modulation`, one number. With a
    negative modulation kernels grow without bounds, since the decay changes sign as well.

    Sources: `ModulatedOjaRule` of Spark (Nogarx/Spark) since 1.1.1; Oja, J. Math. Biol. 15 (1982) 267.

    State: `post_trace` (post,), 1/ms.

    Attributes:
        post_tau: the time constant of the post trace, ms.
        eta: the learning rate.
    """
