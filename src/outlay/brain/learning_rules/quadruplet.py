"""The quadruplet rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from outlay.brain.component import State
from outlay.brain.delays.delays import Arrivals
from outlay.brain.learning_rules.learning_rule import (
    LearningRule,
    change_kernel,
    no_past,
    one_number,
    push_trace,
    row_of,
    unit_tracer,
)
from outlay.brain.port import Port
from outlay.brain.registry import register
from outlay.brain.spikers.spiker_settings import not_positive


@register("quadruplet", kind="learning_rule")
@dataclass(frozen=True)
class QuadrupletRule(LearningRule):
    """Four terms, of spikes alone and of pairs, as fast as a modulation says.

    In every step::

        dK[i,j] = eta (modulation + 0.1) (q_alpha s[i,j] + q_beta post'[i] s[i,j]
                                          + q_gamma z[i] + q_delta z[i] pre'[i,j])
        K'      = max(K + dt dK, 0)

    with traces to which a spike adds 1/tau. The neuron reads `modulation`, one number.

    Source: `QuadrupletRule` of Spark (Nogarx/Spark) until 1.0.0; for that of later versions see
    `BoundedQuadrupletRule`.

    State: `post_trace` (post,), 1/ms; `pre_trace` (steps, pre), 1/ms: that of each pre neuron now and in past steps.

    Attributes:
        pre_tau: time constant of the pre trace, ms.
        post_tau: time constant of the post trace, ms.
        q_alpha: weight of a spike that arrives.
        q_beta: weight of a spike that arrives after spikes of the post neuron, ms.
        q_gamma: weight of a spike of the post neuron.
        q_delta: weight of a spike of the post neuron after spikes that arrived, ms.
        eta: the learning rate.
    """

    by_neuron: ClassVar[tuple[str, ...]] = ("post_trace",)
    reads: ClassVar[Mapping[str, Port]] = {"modulation": Port("values")}

    pre_tau: float = field(default=10.0, metadata={"unit": "ms"})
    post_tau: float = field(default=10.0, metadata={"unit": "ms"})
    q_alpha: float = 1.0
    q_beta: float = 1.0
    q_gamma: float = 1.0
    q_delta: float = 1.0
    eta: float = 0.1

    def rate(self, read: Mapping[str, jax.Array]) -> Any:
        """The learning rate of this step."""
        return self.eta * (one_number(read["modulation"]) + 0.1)

    def init(self, key: jax.Array, units: int, num_inputs: int, num_steps: int, *, dt: float, dtype: Any) -> State:
        """No traces."""
        return {"post_trace": jnp.zeros(units, dtype), "pre_trace": no_past(num_inputs, num_steps, dtype)}

    def step(
        self,
        state: State,
        kernel: jax.Array,
        arrivals: Arrivals,
        spikes: jax.Array,
        read: Mapping[str, jax.Array],
        *,
        dt: float,
    ) -> tuple[State, jax.Array]:
        """One step."""
        past = push_trace(state["pre_trace"], arrivals, self.pre_tau, dt=dt)
        post = unit_tracer(self.post_tau).step(state["post_trace"], spikes, dt=dt)
        rate = self.rate(read)
        arrival = rate * (self.q_alpha + self.q_beta * post.astype(jnp.float32))

        def on_spike(neuron: jax.Array, row: jax.Array, arrived: Arrivals) -> jax.Array:
            of_arrival = jnp.where(arrived.arrived, row_of(arrival, neuron), 0)
            return of_arrival + rate * (self.q_gamma + self.q_delta * arrived.delayed(past))

        kernel = change_kernel(kernel, arrivals, spikes, arrival, on_spike, dt=dt)
        return {"post_trace": post, "pre_trace": past}, kernel

    def problems(self, *, dt: float) -> list[str]:
        """Time constants that are not positive."""
        return not_positive(self, "pre_tau", "post_tau")
