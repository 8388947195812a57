"""Integrators, which decode spikes to numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from outlay.brain.module import MS_PER_S, BrainError, Module, Port, Shape, State, not_positive
from outlay.brain.registry import register
from outlay.brain.traces import RDTracer, Tracer
from outlay.kit import plural

SMOOTHING_TAU = 10.0
"""The time constant of the slower part of a smooth trace, in ms."""


@register("exponential_integrator")
@dataclass(frozen=True)
class ExponentialIntegrator(Module):
    """Smooth the spike counts of `num_outputs` groups of neurons; a group that spikes at `saturation_freq` yields 1.

    With c the spikes of a group in this step, n its neurons, s = (1000 / saturation_freq) / (dt tau n), in every step::

        smooth:  rise'  = exp(-dt/r) rise + s c,         r = 10 tau / (10 + tau)
                 decay' = exp(-dt/10) decay + c / 10,    signal = decay' - rise'
        else:    trace' = exp(-dt/tau) trace + s c,      signal = trace'

    From Spark (Nogarx/Spark), `ExponentialIntegrator`. Spikes of inhibitory neurons count like all others.

    Ports: `spikes` (any shape) -> `signal` (num_outputs,).

    State: `indices` (the group of each neuron), `trace.rise` and `trace.decay`, or `trace` (num_outputs,).

    Attributes:
        num_outputs: the number of groups, of nearly equal size.
        saturation_freq: the mean rate of a group at which its signal is 1, Hz.
        tau: the time constant of the trace, ms.
        shuffle: whether neurons are assigned to groups at random or in order.
        smooth_trace: whether the signal rises smoothly after a spike or at once.
        output_map: the group of each neuron, instead of an automatic assignment.
    """

    num_outputs: int
    saturation_freq: float = field(default=50.0, metadata={"unit": "Hz"})
    tau: float = field(default=5.0, metadata={"unit": "ms"})
    shuffle: bool = True
    smooth_trace: bool = True
    output_map: tuple[int, ...] | None = None

    def inputs(self) -> Mapping[str, Port]:
        """Return the input ports: `spikes`."""
        return {"spikes": Port("spikes")}

    def outputs(self, shapes: Mapping[str, Shape]) -> Mapping[str, Port]:
        """Return the output ports: `signal`."""
        if "spikes" in shapes:
            self._check_groups(int(np.prod(shapes["spikes"])))
        return {"signal": Port("values", (self.num_outputs,))}

    def init(self, key: jax.Array, shapes: Mapping[str, Shape], *, dt: float, dtype: Any) -> State:
        """Return the initial state: zero traces, and the group of each neuron."""
        groups = jnp.asarray(self._groups(int(np.prod(shapes["spikes"]))), jnp.uint32)
        if self.shuffle and self.output_map is None:
            groups = jax.random.permutation(key, groups)
        zeros = jnp.zeros(self.num_outputs, dtype)
        return {"indices": groups, "trace": {"rise": zeros, "decay": zeros} if self.smooth_trace else zeros}

    def step(self, state: State, inputs: Mapping[str, jax.Array], *, dt: float) -> tuple[State, dict[str, jax.Array]]:
        """Advance the state by one step of dt ms."""
        spiked, indices, trace = inputs["spikes"].reshape(-1) != 0, state["indices"], state["trace"]
        # Sum integers: the result is exact and does not depend on the order of summation.
        counts = jax.ops.segment_sum(spiked.astype(jnp.int32), indices, num_segments=self.num_outputs)
        sizes = np.bincount(self._groups(spiked.size), minlength=self.num_outputs)
        # NumPy computes the shares in float64, so that they are rounded once.
        share = jnp.asarray((MS_PER_S / self.saturation_freq) / (dt * self.tau * sizes), jnp.float32) * counts
        if not self.smooth_trace:
            after = Tracer(self.tau).step(trace, share, dt=dt)
            return {"indices": indices, "trace": after}, {"signal": after}
        tracer = RDTracer(tau_rise=self.tau, tau_decay=SMOOTHING_TAU, scale_decay=1 / SMOOTHING_TAU)
        after = {
            "rise": tracer.rise.step(trace["rise"], share, dt=dt),
            "decay": tracer.decay.step(trace["decay"], counts, dt=dt),
        }
        return {"indices": indices, "trace": after}, {"signal": tracer.value(after)}

    def problems(self, *, dt: float) -> list[str]:
        """Report settings that are not positive, and neurons of groups that do not exist."""
        wrong = not_positive(self, "num_outputs", "saturation_freq", "tau")
        if self.output_map is not None and not wrong:
            others = sorted({group for group in self.output_map if not 0 <= group < self.num_outputs})
            if others:
                wrong.append(
                    f"output_map names {plural(len(others), 'group')} {', '.join(map(str, others))}\n"
                    f"groups 0 to {self.num_outputs - 1}: there are num_outputs = {self.num_outputs}"
                )
        return wrong

    def _groups(self, num_neurons: int) -> np.ndarray:
        if self.output_map is not None:
            return np.asarray(self.output_map)
        # If the neurons do not divide evenly, the first groups get one more each.
        base, larger = divmod(num_neurons, self.num_outputs)
        return np.repeat(np.arange(self.num_outputs), [base + (group < larger) for group in range(self.num_outputs)])

    def _check_groups(self, num_neurons: int) -> None:
        if self.output_map is not None and len(self.output_map) != num_neurons:
            raise BrainError(
                f"output_map has {len(self.output_map)} entries, and {num_neurons} neurons arrive\none for each neuron"
            )
        empty = sorted({*range(self.num_outputs)} - {*self._groups(num_neurons).tolist()})
        if empty:
            raise BrainError(
                f"num_outputs is {self.num_outputs}, of the {num_neurons} neurons that arrive, group "
                f"{', '.join(map(str, empty))} would have none\na neuron for each group"
            )


@register("tanh_integrator")
@dataclass(frozen=True)
class TanhIntegrator(Module):
    """Compare the rates of two populations, from -1 to 1.

    With x and y the spikes of the populations in this step, m and n their neurons, in every step::

        X'     = clip(exp(-dt/tau) X + (1000 / saturation_freq) / (dt tau m) x, -1, 1)
        Y'     = clip(exp(-dt/tau) Y + (1000 / saturation_freq) / (dt tau n) y, -1, 1)
        S'     = clip(exp(-dt/smooth_tau) S + (X' - Y') / smooth_tau, -1, 1) where smooth, else X' - Y'
        signal = tanh(pi S')

    From Spark (Nogarx/Spark), `TanhIntegrator`. Spikes of inhibitory neurons count like all others.

    Ports: `x_spikes` and `y_spikes` (any shapes) -> `signal` (1,).

    State: `trace` (2,), X and Y; where smooth `smooth_trace` (1,), S.

    Attributes:
        saturation_freq: the mean rate of a population at which its trace saturates, Hz.
        tau: the time constant of the traces, ms.
        smooth: whether to smooth the difference as well.
        smooth_tau: the time constant of this smoothing, ms.
    """

    saturation_freq: float = field(default=50.0, metadata={"unit": "Hz"})
    tau: float = field(default=5.0, metadata={"unit": "ms"})
    smooth: bool = True
    smooth_tau: float = field(default=5.0, metadata={"unit": "ms"})

    def inputs(self) -> Mapping[str, Port]:
        """Return the input ports: `x_spikes` and `y_spikes`."""
        return {"x_spikes": Port("spikes"), "y_spikes": Port("spikes")}

    def outputs(self, shapes: Mapping[str, Shape]) -> Mapping[str, Port]:
        """Return the output ports: `signal`."""
        return {"signal": Port("values", (1,))}

    def init(self, key: jax.Array, shapes: Mapping[str, Shape], *, dt: float, dtype: Any) -> State:
        """Return the initial state: zero traces."""
        trace = {"trace": jnp.zeros(2, dtype)}
        return {**trace, "smooth_trace": jnp.zeros(1, dtype)} if self.smooth else trace

    def step(self, state: State, inputs: Mapping[str, jax.Array], *, dt: float) -> tuple[State, dict[str, jax.Array]]:
        """Advance the state by one step of dt ms."""
        both = [inputs["x_spikes"].reshape(-1), inputs["y_spikes"].reshape(-1)]
        # Sum integers: the result is exact and does not depend on the order of summation.
        counts = jnp.stack([jnp.sum((spikes != 0).astype(jnp.int32)) for spikes in both])
        share = (MS_PER_S / self.saturation_freq) / (dt * self.tau * np.array([spikes.size for spikes in both]))
        taken = jnp.asarray(share, jnp.float32) * counts
        after = {"trace": _saturated(Tracer(self.tau).step(state["trace"], taken, dt=dt))}
        difference = after["trace"][:1] - after["trace"][1:]
        if self.smooth:
            tracer = Tracer(self.smooth_tau, 1 / self.smooth_tau)
            difference = _saturated(tracer.step(state["smooth_trace"], difference, dt=dt))
            after["smooth_trace"] = difference
        return after, {"signal": jnp.tanh(jnp.pi * difference)}

    def problems(self, *, dt: float) -> list[str]:
        """Report settings that are not positive."""
        return not_positive(self, "saturation_freq", "tau", "smooth_tau")


def _saturated(trace: jax.Array) -> jax.Array:
    return jnp.clip(trace, -1, 1)
