"""Behavioural time scale plasticity."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from outlay.brain.delays import Arrivals
from outlay.brain.learning_rules.kernel_change import ChangeEverywhere, KernelChange
from outlay.brain.learning_rules.learning_rule import PairwiseRule, Read, no_past, one_number, push_trace
from outlay.brain.module import Port, State, not_positive
from outlay.brain.registry import register
from outlay.brain.traces import Tracer

PER_SECOND = 1e-3


@register("btsp", kind="learning_rule")
@dataclass(frozen=True)
class BTSPRule(PairwiseRule):
    """Behavioural time scale plasticity: synapses active within seconds of a plateau change, without post spikes.

    With M the modulation, such as a plateau of 0 to 1, in every step::

        E'      = Tracer(et_tau, scale = et_scale) of s[i,j]
        I'      = Tracer(is_tau, scale = (1 - exp(-dt/is_tau)) is_scale) of M
        x       = E' I', cut off at 0 and 1
        q(x)    = (σ(beta (x - alpha)) - σ(-beta alpha)) / (σ(beta (1 - alpha)) - σ(-beta alpha))
        dK[i,j] = eta ((w_max - K[i,j]) k_pot q_pot(x) - K[i,j] k_dep q_dep(x))
        K'      = min(max(K + dt dK, 0), w_max)

    with σ the logistic function, and q with alpha_pot and beta_pot or with alpha_dep and beta_dep. The neuron has the
    input port `modulation`, one number.

    Sources: `BTSPRule` of Spark (Nogarx/Spark); Milstein et al., eLife 10 (2021) e73046.

    State: `instructive`, I, one number; `pre_trace` (steps, pre): the trace of each pre neuron now and in past steps,
    from which the delays select E.

    Attributes:
        et_tau: the time constant of the eligibility E, ms.
        et_scale: the amount that a spike adds to E.
        is_tau: the time constant of the instructive signal I, ms.
        is_scale: the value of I for a constant modulation of 1.
        w_max: the largest kernel value, pA.
        k_pot: the rate of potentiation, 1/s.
        k_dep: the rate of depression, 1/s.
        alpha_pot: the x of half-maximal potentiation.
        beta_pot: the slope of potentiation.
        alpha_dep: the x of half-maximal depression.
        beta_dep: the slope of depression.
        eta: the learning rate.
    """

    by_neuron: ClassVar[tuple[str, ...]] = ()
    reads: ClassVar[Mapping[str, Port]] = {"modulation": Port("values")}

    et_tau: float = field(default=863.91, metadata={"unit": "ms"})
    et_scale: float = 0.05
    is_tau: float = field(default=542.76, metadata={"unit": "ms"})
    is_scale: float = 2.36
    w_max: float = field(default=4.02, metadata={"unit": "pA"})
    k_pot: float = 2.27
    k_dep: float = 0.33
    alpha_pot: float = 0.24
    beta_pot: float = 30.32
    alpha_dep: float = 0.09
    beta_dep: float = 2260.61
    eta: float = 1.0

    def init(self, key: jax.Array, units: int, num_inputs: int, num_steps: int, *, dt: float, dtype: Any) -> State:
        """Return the initial state: zero traces."""
        return {"instructive": jnp.zeros((), dtype), "pre_trace": no_past(num_inputs, num_steps, dtype)}

    def change(
        self, state: State, arrivals: Arrivals, spikes: jax.Array, read: Read, *, dt: float
    ) -> tuple[State, KernelChange]:
        """Return the state with both traces; every pair may change."""
        past = push_trace(state["pre_trace"], arrivals, Tracer(self.et_tau, self.et_scale), dt=dt)
        tracer = Tracer(self.is_tau, -math.expm1(-dt / self.is_tau) * self.is_scale)
        instructive = tracer.step(state["instructive"], one_number(read["modulation"]), dt=dt)
        # Exponentials are of pre neurons and delays, not of pairs: all pairs with the same ones have the same overlap.
        by_pair = arrivals.delays is not None and arrivals.delays.ndim == 2
        traces = (past if by_pair else arrivals.delayed(past)).astype(jnp.float32)
        overlap = jnp.clip(traces * instructive.astype(jnp.float32), 0, 1)
        up = PER_SECOND * self.k_pot * _halfway(overlap, self.alpha_pot, self.beta_pot)
        down = PER_SECOND * self.k_dep * _halfway(overlap, self.alpha_dep, self.beta_dep)
        # Without the barrier XLA fuses them into their consumer and recomputes them for every pair.
        up, down = jax.lax.optimization_barrier((up, down))
        rate = self.rate(read)

        def everywhere(kernel: jax.Array, arrived: Arrivals, of_post: Callable[[jax.Array], jax.Array]) -> jax.Array:
            of_pairs = [jnp.broadcast_to(arrived.delayed(x) if by_pair else x, kernel.shape) for x in (up, down)]
            return rate * ((self.w_max - kernel) * of_pairs[0] - kernel * of_pairs[1])

        return {"instructive": instructive, "pre_trace": past}, ChangeEverywhere(everywhere, ceiling=self.w_max)

    def problems(self, *, dt: float) -> list[str]:
        """Report time constants, a greatest kernel and slopes that are not positive."""
        return not_positive(self, "et_tau", "is_tau", "w_max", "beta_pot", "beta_dep")


def _halfway(x: jax.Array, alpha: float, beta: float) -> jax.Array:
    """Evaluate a logistic function scaled to be 0 at 0 and 1 at 1."""
    low, high = jax.nn.sigmoid(-beta * alpha), jax.nn.sigmoid(beta * (1 - alpha))
    return (jax.nn.sigmoid(beta * (x - alpha)) - low) / (high - low)
