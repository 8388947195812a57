"""The quadruplet rule, also with an upper bound and settings for excitatory and inhibitory neurons."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from outlay.brain.delays import Arrivals
from outlay.brain.learning_rules.kernel_change import ChangeOnSpikes, KernelChange, OnSpike, Rows, row_of
from outlay.brain.learning_rules.learning_rule import (
    Modulated,
    PairwiseRule,
    Read,
    TwoTraceRule,
    one_number,
)
from outlay.brain.module import Port, State
from outlay.brain.registry import register

ByPair = float | tuple[float, float, float, float]
"""One number for all pairs, or four: EE, EI, IE, II, the post neuron first (EI is an excitatory neuron that reads an
inhibitory one)."""


@register("quadruplet", kind="learning_rule")
@dataclass(frozen=True)
class QuadrupletRule(TwoTraceRule):
    """The quadruplet rule: terms for single spikes and for pairs, with a rate proportional to a modulation.

    In every step::

        dK[i,j] = eta (modulation + 0.1) (q_alpha s[i,j] + q_beta post'[i] s[i,j]
                                          + q_gamma z[i] + q_delta z[i] pre'[i,j])
        K'      = max(K + dt dK, 0)

    with traces to which a spike adds 1/tau. The neuron has the input port `modulation`, one number.

    Source: `QuadrupletRule` of Spark (Nogarx/Spark) until 1.0.0; for that of later versions see
    `BoundedQuadrupletRule`.

    State: `post_trace` (post,), 1/ms; `pre_trace` (steps, pre), 1/ms: that of each pre neuron now and in past steps.

    Attributes:
        pre_tau: the time constant of the pre trace, ms.
        post_tau: the time constant of the post trace, ms.
        q_alpha: the weight of an arriving spike.
        q_beta: the weight of an arriving spike after spikes of the post neuron, ms.
        q_gamma: the weight of a spike of the post neuron.
        q_delta: the weight of a spike of the post neuron after arriving spikes, ms.
        eta: the learning rate.
    """

    reads: ClassVar[Mapping[str, Port]] = {"modulation": Port("values")}

    pre_tau: float = field(default=10.0, metadata={"unit": "ms"})
    post_tau: float = field(default=10.0, metadata={"unit": "ms"})
    q_alpha: float = 1.0
    q_beta: float = 1.0
    q_gamma: float = 1.0
    q_delta: float = 1.0
    eta: float = 0.1

    def rate(self, read: Read) -> Any:
        """Return the learning rate of this step."""
        return self.eta * (one_number(read["modulation"]) + 0.1)

    def changes(self, rate: Any, post: jax.Array, past: jax.Array) -> tuple[jax.Array, OnSpike]:
        """Return all four terms where a post neuron spikes, and the first two elsewhere."""
        arrival = rate * (self.q_alpha + self.q_beta * post)

        def on_spike(neuron: jax.Array, rows: Rows, arrived: Arrivals) -> jax.Array:
            of_arrival = jnp.where(arrived.arrived, row_of(arrival, neuron), 0)
            return of_arrival + rate * (self.q_gamma + self.q_delta * arrived.delayed(past))

        return arrival, on_spike


@register("bounded_quadruplet", kind="learning_rule")
@dataclass(frozen=True)
class BoundedQuadrupletRule(PairwiseRule):
    """The quadruplet rule with an upper bound; each setting may depend on the kind of pair.

    In every step::

        dK[i,j] = eta (q_alpha s[i,j] + q_beta post'[i,j] s[i,j] + q_gamma z[i] + q_delta z[i] pre'[i,j])
        K'      = min(max(K + dt dK, 0), max_clip)

    with traces to which a spike adds 1/tau. Each setting but eta is one number for all pairs, or four, in the order
    EE, EI, IE, II, with the post neuron first: EI is an excitatory neuron that reads an inhibitory one.

    Source: `QuadrupletRule` of Spark (Nogarx/Spark) since 1.1.1.

    State: `post_trace` (post, 2), 1/ms: with the time constants for excitatory and for inhibitory pre neurons;
    `pre_trace` (2, steps, pre), 1/ms: with those for excitatory and for inhibitory post neurons, that of each pre
    neuron now and in past steps.

    Attributes:
        pre_tau: the time constant of the pre trace, ms.
        post_tau: the time constant of the post trace, ms.
        q_alpha: the weight of an arriving spike.
        q_beta: the weight of an arriving spike after spikes of the post neuron, ms.
        q_gamma: the weight of a spike of the post neuron.
        q_delta: the weight of a spike of the post neuron after arriving spikes, ms.
        max_clip: the largest kernel value, pA.
        eta: the learning rate.
    """

    by_neuron: ClassVar[tuple[str, ...]] = ("post_trace",)

    pre_tau: ByPair = field(default=1.0, metadata={"unit": "ms"})
    post_tau: ByPair = field(default=1.0, metadata={"unit": "ms"})
    q_alpha: ByPair = 1.0
    q_beta: ByPair = 1.0
    q_gamma: ByPair = 1.0
    q_delta: ByPair = 1.0
    max_clip: ByPair = field(default=20.0, metadata={"unit": "pA"})
    eta: float = 0.1

    def init(self, key: jax.Array, units: int, num_inputs: int, num_steps: int, *, dt: float, dtype: Any) -> State:
        """Return the initial state: zero traces."""
        past = jnp.zeros((2, num_steps, num_inputs), dtype)
        return {"post_trace": jnp.zeros((units, 2), dtype), "pre_trace": past}

    def change(
        self, state: State, arrivals: Arrivals, spikes: jax.Array, read: Read, *, dt: float
    ) -> tuple[State, KernelChange]:
        """Return the state with the traces of each kind of neuron, and the changes by spikes at either end."""
        inhibitory, rate = read["inhibitory"], self.rate(read)
        past = self._pushed(state["pre_trace"], arrivals, dt)
        post = _traced(state["post_trace"], spikes[:, None], _by_post(self.post_tau, inhibitory), dt)
        trace = post.astype(jnp.float32)
        arrival = rate * (_by_post(self.q_alpha, inhibitory) + _by_post(self.q_beta, inhibitory) * trace)
        spike = rate * _by_post(self.q_gamma, inhibitory)
        pair = rate * _by_post(self.q_delta, inhibitory)
        of_kind = inhibitory.astype(jnp.uint8)

        def on_spike(neuron: jax.Array, rows: Rows, arrived: Arrivals) -> jax.Array:
            def of_row(by_post: jax.Array) -> jax.Array:
                both = row_of(by_post, neuron)
                return jnp.where(arrived.inhibitory, both[1], both[0])

            seen = arrived.delayed(row_of(past, row_of(of_kind, neuron)))
            of_arrival = jnp.where(arrived.arrived, of_row(arrival), 0)
            return of_arrival + of_row(spike) + of_row(pair) * seen

        ceiling = _by_post(self.max_clip, inhibitory)
        return {"post_trace": post, "pre_trace": past}, ChangeOnSpikes(arrival, on_spike, ceiling)

    def problems(self, *, dt: float) -> list[str]:
        """Report time constants and a greatest kernel that are not positive, and settings without 1 or 4 values."""
        wrong = []
        for setting in dataclasses.fields(self):
            value = getattr(self, setting.name)
            numbers = value if isinstance(value, tuple) else (value,)
            if isinstance(value, tuple) and len(value) != 4:
                wrong.append(f"{setting.name} has {len(value)} values\none number, or four: EE, EI, IE, II")
            elif setting.metadata.get("unit") and not all(number > 0 for number in numbers):
                wrong.append(f"{setting.name} is {value}\npositive numbers, such as {setting.default:g}")
        return wrong

    def _pushed(self, past: jax.Array, arrivals: Arrivals, dt: float) -> jax.Array:
        """Push the traces of pre neurons of one more step."""
        tau = jnp.stack([jnp.where(arrivals.inhibitory, of_i, of_e) for of_e, of_i in _pairs(self.pre_tau)])
        newest = _traced(past[:, 0], arrivals.sent[None], tau, dt)
        # Without the barrier XLA fuses this into its consumer and recomputes the trace for every pair.
        return jax.lax.optimization_barrier(jnp.concatenate([newest[:, None], past[:, :-1]], axis=1))


@register("modulated_bounded_quadruplet", kind="learning_rule")
@dataclass(frozen=True)
class ModulatedBoundedQuadrupletRule(Modulated, BoundedQuadrupletRule):
    """The quadruplet rule with an upper bound and a rate proportional to a modulation M.

    In every step::

        dK[i,j] = eta M (q_alpha s[i,j] + q_beta post'[i,j] s[i,j] + q_gamma z[i] + q_delta z[i] pre'[i,j])
        K'      = min(max(K + dt dK, 0), max_clip)

    with traces to which a spike adds 1/tau. Each setting but eta is one number for all pairs, or four, in the order
    EE, EI, IE, II, with the post neuron first. The neuron has the input port `modulation`, one number.

    Sources: `QuadrupletRuleTensor` of Spark (Nogarx/Spark) 1.0.0, `QuadrupletRule` of 1.1.0, and
    `ModulatedQuadrupletRule` since 1.1.1.

    State: `post_trace` (post, 2), 1/ms: with the time constants for excitatory and for inhibitory pre neurons;
    `pre_trace` (2, steps, pre), 1/ms: with those for excitatory and for inhibitory post neurons, that of each pre
    neuron now and in past steps.

    Attributes:
        pre_tau: the time constant of the pre trace, ms.
        post_tau: the time constant of the post trace, ms.
        q_alpha: the weight of an arriving spike.
        q_beta: the weight of an arriving spike after spikes of the post neuron, ms.
        q_gamma: the weight of a spike of the post neuron.
        q_delta: the weight of a spike of the post neuron after arriving spikes, ms.
        max_clip: the largest kernel value, pA.
        eta: the learning rate.
    """


def _pairs(value: ByPair) -> Iterator[tuple[float, float]]:
    """Expand a setting to (excitatory, inhibitory) post neurons, each with values for both kinds of pre neurons."""
    four = value if isinstance(value, tuple) else (value,) * 4
    yield four[0], four[1]
    yield four[2], four[3]


def _by_post(value: ByPair, inhibitory: jax.Array) -> jax.Array:
    """Expand a setting to post neurons, with values for excitatory and inhibitory pre neurons: (post, 2)."""
    of_e, of_i = (jnp.asarray(pair, jnp.float32) for pair in _pairs(value))
    return jnp.where(inhibitory[:, None], of_i, of_e)


def _traced(trace: jax.Array, spikes: jax.Array, tau: jax.Array, dt: float) -> jax.Array:
    """Advance traces with several time constants by a step."""
    after = jnp.exp(-dt / tau) * trace.astype(jnp.float32) + jnp.where(spikes, 1 / tau, 0)
    return after.astype(trace.dtype)
