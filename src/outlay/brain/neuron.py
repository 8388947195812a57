"""A population of neurons, composed of delays, synapses, a soma and a learning rule."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from outlay.brain.delays import Delays, NoDelays
from outlay.brain.initializers import by_neuron
from outlay.brain.learning_rules.learning_rule import LearningRule
from outlay.brain.module import BrainError, Component, Module, Port, Shape, State
from outlay.brain.registry import register
from outlay.brain.somas.leaky import AdaptiveLeakySoma
from outlay.brain.somas.soma import Soma
from outlay.brain.synapses import LinearSynapses, Synapses

RULE = "learning_rule"


@register("neuron")
@dataclass(frozen=True)
class Neuron(Module):
    """A population of neurons that read the same spikes.

    In every step::

        delays -> which spikes arrive -> synapses -> current -> soma -> spikes
        arriving spikes and output spikes -> learning rule -> kernel of the next step

    Ports: `in_spikes` (any shape), and the inputs of the learning rule -> `out_spikes` (units,): +1, -1 from an
    inhibitory neuron, or 0.

    State: `inhibitory` (units,), and the states of the components under `delays`, `synapses`, `soma`, `learning_rule`.

    Attributes:
        units: the number of neurons.
        inhibitory_rate: the fraction of inhibitory neurons, from 0 to 1; they are chosen at random.
        soma: the model that turns current into spikes.
        synapses: the model that turns arriving spikes into current.
        delays: the axonal delays.
        learning_rule: how the kernel changes; None for a constant kernel.

    Example:
        >>> from outlay.brain import Brain, Connection, Constant, LeakySoma, LinearSpiker
        >>> neurons = Neuron(2, soma=LeakySoma(resistance=1.0), synapses=LinearSynapses(Constant(30.0)))
        >>> brain = Brain(
        ...     {"eye": LinearSpiker(), "neurons": neurons},
        ...     [Connection("inputs:light", "eye:signal"), Connection("eye:spikes", "neurons:in_spikes")],
        ...     inputs={"light": (3,)},
        ...     outputs={"spikes": "neurons:out_spikes"},
        ... )
        >>> state = brain.init(jax.random.key(0))
        >>> state["neurons"]["synapses"]["kernel"].shape
        (2, 3)
        >>> state, outputs = brain.step(state, {"light": jnp.ones(3)})
        >>> outputs["spikes"]
        Array([0, 0], dtype=int8)
    """

    units: int
    inhibitory_rate: float = 0.0
    soma: Soma = field(default_factory=AdaptiveLeakySoma)
    synapses: Synapses = field(default_factory=LinearSynapses)
    delays: Delays = field(default_factory=NoDelays)
    learning_rule: LearningRule | None = None

    @property
    def by_neuron(self) -> tuple[str, ...]:  # type: ignore[override]  # what it is follows from its components
        """The leaves with one row per neuron, without those of its inputs, such as past spikes."""
        named = self._components().items()
        return ("inhibitory", *(f"{name}.{leaf}" for name, component in named for leaf in component.by_neuron))

    def inputs(self) -> Mapping[str, Port]:
        """Return the input ports: `in_spikes`, and those of the learning rule."""
        return {"in_spikes": Port("spikes"), **(self.learning_rule.reads if self.learning_rule else {})}

    def outputs(self, shapes: Mapping[str, Shape]) -> Mapping[str, Port]:
        """Return the output ports: `out_spikes`."""
        for port in self.learning_rule.reads if self.learning_rule else ():
            # A shape that is not known yet counts as right: it is asked for again.
            if math.prod(shapes.get(port, ())) != 1:
                raise BrainError(f"{port} is one number, and what arrives is {shapes[port]}\n  fix: connect one number")
        return {"out_spikes": Port("spikes", (self.units,))}

    def init(self, key: jax.Array, shapes: Mapping[str, Shape], *, dt: float, dtype: Any) -> State:
        """Return the initial state: at rest, with kernels, delays and signs drawn."""
        num_inputs = math.prod(shapes["in_spikes"])
        of_sign, of_soma, of_synapses, of_delays, of_rule = jax.random.split(key, 5)
        state = {
            "inhibitory": _inhibitory(of_sign, self.units, self.inhibitory_rate),
            "soma": self.soma.init(of_soma, self.units, dt=dt, dtype=dtype),
            "synapses": self.synapses.init(of_synapses, self.units, num_inputs, dt=dt, dtype=dtype),
            "delays": self.delays.init(of_delays, self.units, num_inputs, dt=dt),
        }
        if self.learning_rule:
            steps = self.delays.num_steps(dt=dt)
            state[RULE] = self.learning_rule.init(of_rule, self.units, num_inputs, steps, dt=dt, dtype=dtype)
        return state

    def signs(self, state: State, read: Mapping[str, jax.Array]) -> Mapping[str, jax.Array]:
        """Return the inhibitory neurons."""
        return {"out_spikes": state["inhibitory"]}

    def with_signs(self, state: State, read: Mapping[str, jax.Array]) -> State:
        """Add which sources are inhibitory; a learning rule needs that before the first of them spikes."""
        return {**state, "delays": {**state["delays"], "inhibitory": read["in_spikes"]}}

    def step(self, state: State, inputs: Mapping[str, jax.Array], *, dt: float) -> tuple[State, dict[str, jax.Array]]:
        """Advance the state by one step of dt ms."""
        delays, arrivals = self.delays.step(state["delays"], inputs["in_spikes"].reshape(-1))
        synapses, current = self.synapses.step(state["synapses"], arrivals, dt=dt)
        soma, spikes = self.soma.step(state["soma"], current, dt=dt)
        after = {**state, "delays": delays, "synapses": synapses, "soma": soma}
        if self.learning_rule:
            read = {**inputs, "inhibitory": state["inhibitory"]}
            after[RULE], kernel = self.learning_rule.step(
                state[RULE], synapses["kernel"], arrivals, spikes, read, dt=dt
            )
            after["synapses"] = {**synapses, "kernel": kernel}
        return after, {"out_spikes": signed(spikes, state["inhibitory"])}

    def problems(self, *, dt: float) -> list[str]:
        """Report the problems of the components, each with the name of its component."""
        wrong = []
        if not (isinstance(self.units, int) and 0 < self.units < 2**31):
            wrong.append(f"units is {self.units!r}\na whole number of neurons, at least 1 and below 2**31")
        if not 0 <= self.inhibitory_rate <= 1:
            wrong.append(f"inhibitory_rate is {self.inhibitory_rate:g}\na share from 0 to 1")
        for name, component in self._components().items():
            wrong += [f"{name}.{sentence}" for sentence in component.problems(dt=dt)]
        wrong += [f"soma.{sentence}" for sentence in self.soma.level_problems()]
        wrong += [f"synapses.kernel.{sentence}" for sentence in self.synapses.kernel.problems()]
        return wrong

    def _components(self) -> dict[str, Component]:
        there = {name: getattr(self, name) for name in ("soma", "synapses", "delays", RULE)}
        return {name: component for name, component in there.items() if component is not None}


def signed(spikes: jax.Array, inhibitory: jax.Array) -> jax.Array:
    """Return spikes (bool) with the sign of their neurons: +1, -1 or 0."""
    return jnp.where(spikes, jnp.where(inhibitory, jnp.int8(-1), jnp.int8(1)), 0)


def _inhibitory(key: jax.Array, units: int, rate: float) -> jax.Array:
    """Choose the inhibitory neurons: the nearest number to their fraction, those with the lowest random numbers."""
    num = round(rate * units)
    if num in (0, units):  # all are alike: two sorts less to compile
        return jnp.full(units, num > 0)
    draws = by_neuron(jax.random.uniform, key, (units,))
    # argsort of argsort is the rank of each draw, so that the number of inhibitory neurons is exact, not random.
    return jnp.argsort(jnp.argsort(draws)) < num
