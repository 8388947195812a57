"""A population of neurons: delays, synapses, a soma and a learning rule put together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from outlay.brain.delays import Delays, NoDelays
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
    """Neurons of one kind, which read the same spikes.

    In every step::

        delays -> which spikes arrive -> synapses -> current -> soma -> spikes
        learning rule: of what arrived and of these spikes, the kernel of the next step

    Ports: `in_spikes` (any shape), and what the learning rule reads -> `out_spikes` (units,): +1, -1 from an
    inhibitory neuron, or 0.

    State: `inhibitory` (units,), and that of each component under `delays`, `synapses`, `soma`, `learning_rule`.

    Attributes:
        units: how many neurons.
        inhibitory_rate: the share of them that is inhibitory, from 0 to 1; which ones is drawn.
        soma: what makes spikes of current.
        synapses: what makes current of the spikes that arrive.
        delays: how long spikes travel.
        learning_rule: how the kernel changes; None for a kernel that does not.

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
        """The leaves about its neurons; what is about those it reads, such as past spikes, is not among them."""
        named = self._components().items()
        return ("inhibitory", *(f"{name}.{leaf}" for name, component in named for leaf in component.by_neuron))

    def inputs(self) -> Mapping[str, Port]:
        """It reads `in_spikes`, and what its learning rule reads."""
        return {"in_spikes": Port("spikes"), **(self.learning_rule.reads if self.learning_rule else {})}

    def outputs(self, shapes: Mapping[str, Shape]) -> Mapping[str, Port]:
        """It writes `out_spikes`."""
        for port in self.learning_rule.reads if self.learning_rule else ():
            if math.prod(shapes.get(port, ())) != 1:
                raise BrainError(f"{port} is one number, and what arrives is {shapes[port]}\n  fix: connect one number")
        return {"out_spikes": Port("spikes", (self.units,))}

    def init(self, key: jax.Array, shapes: Mapping[str, Shape], *, dt: float, dtype: Any) -> State:
        """At rest, with kernels, delays and signs drawn."""
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
        """Its inhibitory neurons."""
        return {"out_spikes": state["inhibitory"]}

    def with_signs(self, state: State, read: Mapping[str, jax.Array]) -> State:
        """With who is inhibitory among those it reads, as a rule has to know before the first of them spikes."""
        return {**state, "delays": {**state["delays"], "inhibitory": read["in_spikes"]}}

    def step(self, state: State, inputs: Mapping[str, jax.Array], *, dt: float) -> tuple[State, dict[str, jax.Array]]:
        """One step of dt ms."""
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
        """Those of its components, each with the component's name before it."""
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
    """The spikes of neurons, bool, with the sign of those that sent them: +1, -1 or 0."""
    return jnp.where(spikes, jnp.where(inhibitory, jnp.int8(-1), jnp.int8(1)), 0)


def _inhibitory(key: jax.Array, units: int, rate: float) -> jax.Array:
    """Which neurons are inhibitory: the nearest number to their share, those with the lowest draws."""
    # Each neuron draws from its own number, so the draws do not depend on how many neurons there are.
    draws = jax.vmap(lambda unit: jax.random.uniform(jax.random.fold_in(key, unit)))(jnp.arange(units))
    # argsort of argsort is the rank of each draw: exactly the share asked for is inhibitory, not about as many.
    return jnp.argsort(jnp.argsort(draws)) < round(rate * units)
