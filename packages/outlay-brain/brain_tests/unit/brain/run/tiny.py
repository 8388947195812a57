"""A Brain that runs in a moment, with a module of its own."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp

from outlay.brain.brain import Brain
from outlay.brain.connections import Connection
from outlay.brain.module import Module, Port


@dataclass(frozen=True)
class Ramp(Module):
    """Adds up what comes in, and spikes and begins anew above `threshold`."""

    by_neuron: ClassVar[tuple[str, ...]] = ("soma.potential", "synapses.kernel")

    units: int = 3
    threshold: float = 1.0

    def inputs(self):
        return {"signal": Port("values")}

    def outputs(self, shapes: Mapping[str, Any]):
        return {"out_spikes": Port("spikes", (self.units,))}

    def init(self, key, shapes, *, dt, dtype):
        return {
            "soma": {"potential": jnp.zeros(self.units, dtype)},
            "synapses": {"kernel": jnp.ones((self.units, 4), dtype)},
        }

    def step(self, state, inputs, *, dt):
        weighted = (state["synapses"]["kernel"] * inputs["signal"].mean()).sum(1) / 4
        potential = state["soma"]["potential"] + weighted
        spiked = potential > self.threshold
        after = {"soma": {"potential": jnp.where(spiked, 0, potential)}, "synapses": state["synapses"]}
        return after, {"out_spikes": spiked.astype(jnp.int8)}


@dataclass(frozen=True)
class Count(Module):
    """The number of spikes of the step before."""

    def inputs(self):
        return {"spikes": Port("spikes")}

    def outputs(self, shapes):
        return {"signal": Port("values", (1,))}

    def init(self, key, shapes, *, dt, dtype):
        return {}

    def step(self, state, inputs, *, dt):
        return state, {"signal": jnp.abs(inputs["spikes"]).sum(dtype=jnp.float32)[None]}


def tiny(dt: float = 1.0, **ramp: Any) -> Brain:
    """inputs:light (2,) -> eye (3 units) -> count -> output `seen`."""
    return Brain(
        {"eye": Ramp(**ramp), "count": Count()},
        [Connection("inputs:light", "eye:signal"), Connection("eye:out_spikes", "count:spikes")],
        inputs={"light": (2,)},
        outputs={"seen": "count:signal"},
        dt=dt,
    )
