"""An integrator: spikes of groups of neurons back to numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from outlay.brain.module import Module, State
from outlay.brain.port import Port, Shape
from outlay.brain.registry import register
from outlay.brain.spikers.linear import MS_PER_S
from outlay.brain.spikers.settings import not_positive
from outlay.brain.traces import RDTracer, Tracer
from outlay.core.errors import BrainError

SMOOTHING_TAU = 10.0
"""Time constant, in ms, of the slower part of a smooth trace."""


@register("exponential_integrator")
@dataclass(frozen=True)
class ExponentialIntegrator(Module):
    """Spikes of `num_outputs` groups of neurons, counted and smoothed: 1 where a group spikes at `saturation_freq`.

    With c the spikes of a group in this step, n its neurons, s = (1000 / saturation_freq) / (dt tau n), in every step::

        smooth:  rise'  = exp(-dt/r) rise + s c,         r = 10 tau / (10 + tau)
                 decay' = exp(-dt/10) decay + c / 10,    signal = decay' - rise'
        else:    trace' = exp(-dt/tau) trace + s c,      signal = trace'

    From Spark (Nogarx/Spark), `ExponentialIntegrator`. A spike of an inhibitory neuron counts as any other.

    Ports: `spikes` (any shape) -> `signal` (num_outputs,).

    State: `indices` (the group of each neuron), `trace.rise` and `trace.decay`, or `trace` (num_outputs,).

    Attributes:
        num_outputs: groups, of sizes as equal as can be.
        saturation_freq: mean rate of a group, Hz.
        tau: time constant of what a spike leaves, ms.
        shuffle: whether neurons are dealt out to the groups at random, or in their order.
        smooth_trace: whether the signal rises smoothly after a spike, or at once.
        output_map: the group of each neuron, in place of dealing them out.
    """

    num_outputs: int
    saturation_freq: float = field(default=50.0, metadata={"unit": "Hz"})
    tau: float = field(default=5.0, metadata={"unit": "ms"})
    shuffle: bool = True
    smooth_trace: bool = True
    output_map: tuple[int, ...] | None = None

    def inputs(self) -> Mapping[str, Port]:
        """It reads `spikes`."""
        return {"spikes": Port("spikes")}

    def outputs(self, shapes: Mapping[str, Shape]) -> Mapping[str, Port]:
        """It writes `signal`."""
        if "spikes" in shapes:
            self._refuse_empty_groups(int(np.prod(shapes["spikes"])))
        return {"signal": Port("values", (self.num_outputs,))}

    def init(self, key: jax.Array, shapes: Mapping[str, Shape], *, dt: float, dtype: Any) -> State:
        """Nothing heard yet, and who belongs to which group."""
        groups = jnp.asarray(self._groups(int(np.prod(shapes["spikes"]))), jnp.uint32)
        if self.shuffle and self.output_map is None:
            groups = jax.random.permutation(key, groups)
        zeros = jnp.zeros(self.num_outputs, dtype)
        return {"indices": groups, "trace": {"rise": zeros, "decay": zeros} if self.smooth_trace else zeros}

    def step(self, state: State, inputs: Mapping[str, jax.Array], *, dt: float) -> tuple[State, dict[str, jax.Array]]:
        """One step of dt ms."""
        spiked, indices, trace = inputs["spikes"].reshape(-1) != 0, state["indices"], state["trace"]
        # Whole numbers: the sum is the same in any order.
        counts = jax.ops.segment_sum(spiked.astype(jnp.int32), indices, num_segments=self.num_outputs)
        sizes = np.bincount(self._groups(spiked.size), minlength=self.num_outputs)
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
        """Settings that are not positive, and neurons of groups that do not exist."""
        wrong = not_positive(self, "num_outputs", "saturation_freq", "tau")
        if self.output_map is not None and not wrong:
            others = sorted({group for group in self.output_map if not 0 <= group < self.num_outputs})
            if others:
                wrong.append(
                    f"output_map names the group(s) {', '.join(map(str, others))}\n"
                    f"groups 0 to {self.num_outputs - 1}: there are num_outputs = {self.num_outputs}"
                )
        return wrong

    def _groups(self, num_neurons: int) -> np.ndarray:
        """The group of each neuron, in order."""
        if self.output_map is not None:
            return np.asarray(self.output_map)
        base, larger = divmod(num_neurons, self.num_outputs)
        return np.repeat(np.arange(self.num_outputs), [base + (group < larger) for group in range(self.num_outputs)])

    def _refuse_empty_groups(self, num_neurons: int) -> None:
        if self.output_map is not None and len(self.output_map) != num_neurons:
            raise BrainError(
                f"output_map has {len(self.output_map)} entries, and {num_neurons} neurons arrive\none for each neuron"
            )
        empty = sorted({*range(self.num_outputs)} - {*self._groups(num_neurons).tolist()})
        if empty:
            raise BrainError(
                f"num_outputs is {self.num_outputs}, and group(s) {', '.join(map(str, empty))} of the {num_neurons} "
                "neurons that arrive would be empty\na neuron for each group"
            )
