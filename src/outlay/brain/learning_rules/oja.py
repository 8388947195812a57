"""Oja's rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from outlay.brain.component import State
from outlay.brain.delays.delays import Arrivals
from outlay.brain.learning_rules.learning_rule import LearningRule, Modulated, unit_tracer
from outlay.brain.registry import register
from outlay.brain.spikers.spiker_settings import not_positive


@register("oja", kind="learning_rule")
@dataclass(frozen=True)
class OjaRule(LearningRule):
    """Hebb's rule with a decay that keeps kernels bounded.

    In every step::

        dK[i,j] = eta (post'[i] s[i,j] - K[i,j] post'[i]²)
        K'      = max(K + dt dK, 0)

    with a trace to which a spike adds 1/tau.

    Sources: `OjaRule` of Spark (Nogarx/Spark); Oja, J. Math. Biol. 15 (1982) 267.

    State: `post_trace` (post,), 1/ms.

    Attributes:
        post_tau: time constant of the post trace, ms.
        eta: the learning rate.
    """

    by_neuron: ClassVar[tuple[str, ...]] = ("post_trace",)

    post_tau: float = field(default=20.0, metadata={"unit": "ms"})
    eta: float = 0.1

    def init(self, key: jax.Array, units: int, num_inputs: int, num_steps: int, *, dt: float, dtype: Any) -> State:
        """No trace."""
        return {"post_trace": jnp.zeros(units, dtype)}

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
        post = unit_tracer(self.post_tau).step(state["post_trace"], spikes, dt=dt)
        trace, before = post.astype(jnp.float32)[:, None], kernel.astype(jnp.float32)
        change = self.rate(read) * (jnp.where(arrivals.arrived, trace, 0) - before * trace**2)
        return {"post_trace": post}, jnp.maximum(before + dt * change, 0).astype(kernel.dtype)

    def problems(self, *, dt: float) -> list[str]:
        """A time constant that is not positive."""
        return not_positive(self, "post_tau")


@register("modulated_oja", kind="learning_rule")
@dataclass(frozen=True)
class ModulatedOjaRule(Modulated, OjaRule):
    """Oja's rule, its decay too, as fast as a modulation M says.

    In every step::

        dK[i,j] = eta M (post'[i] s[i,j] - K[i,j] post'[i]²)
        K'      = max(K + dt dK, 0)

    with a trace to which a spike adds 1/tau. The neuron reads `modulation`, one number. A negative one lets kernels
    grow without bounds: what keeps them bounded is turned around too.

    Sources: `ModulatedOjaRule` of Spark (Nogarx/Spark) since 1.1.1; Oja, J. Math. Biol. 15 (1982) 267.

    State: `post_trace` (post,), 1/ms.

    Attributes:
        post_tau: time constant of the post trace, ms.
        eta: the learning rate.
    """
