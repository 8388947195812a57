"""The traces that learning rules read."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from outlay.brain.delays.base import Arrivals
from outlay.brain.traces import Tracer


def unit_tracer(tau: float) -> Tracer:
    """A trace to which a spike adds 1/tau: at a steady rate it is that rate, in spikes/ms."""
    return Tracer(tau, scale=1 / tau)


def no_past(num_inputs: int, num_steps: int, dtype: Any) -> jax.Array:
    """The traces of pre neurons now and in the past steps that delays reach back to, newest first."""
    return jnp.zeros((num_steps, num_inputs), dtype)


def push_trace(past: jax.Array, arrivals: Arrivals, tau: float, *, dt: float) -> jax.Array:
    """The traces of pre neurons after one more step."""
    newest = unit_tracer(tau).step(past[0], arrivals.sent, dt=dt)
    # Else every pair would compute the trace of its pre neuron anew.
    return jax.lax.optimization_barrier(jnp.concatenate([newest[None], past[:-1]]))
