"""A population of neurons, composed of delays, synapses, a soma and a learning rule."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp

from outlay.brain.check_components import check_current, check_spikes_of, checked_pair, kind_problems
from outlay.brain.delays import Arrivals, Delays, NoDelays
from outlay.brain.initializers import Initializer, SomeNeurons, by_neuron, initializing, makes_rows, own_rows
from outlay.brain.learning_rules.learning_rule import LearningRule
from outlay.brain.module import BrainError, Component, Module, Port, Shape, State
from outlay.brain.neuron_settings import SETTINGS, has_settings, setting_problems, settings_state, with_settings
from outlay.brain.registry import is_outlays, register
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

    With `graded`, `in_spikes` takes numbers, too: x brings x times the kernel, as current. A spike is 1, or -1 from an
    inhibitory neuron, so that both may arrive together.

    State: `inhibitory` (units,), and the states of the components under `delays`, `synapses`, `soma`, `learning_rule`.

    Attributes:
        units: the number of neurons.
        inhibitory_rate: the fraction of inhibitory neurons, from 0 to 1; they are chosen at random.
        soma: the model that turns current into spikes.
        synapses: the model that turns arriving spikes into current.
        delays: the axonal delays.
        learning_rule: how the kernel changes; None for a constant kernel.
        graded: whether `in_spikes` takes numbers, and not only spikes; without delays and learning rule, which are of
            spikes.

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
    graded: bool = False

    @property
    def by_neuron(self) -> tuple[str, ...]:  # type: ignore[override]  # what it is follows from its components
        """The leaves with one row per neuron, except its inputs', such as past spikes."""
        named = self._components().items()
        own = ("inhibitory", f"{SETTINGS}.**") if has_settings(self._components()) else ("inhibitory",)
        return (*own, *(f"{name}.{leaf}" for name, component in named for leaf in component.by_neuron))

    def inputs(self) -> Mapping[str, Port]:
        """Return the input ports: `in_spikes`, and the learning rule's."""
        return {"in_spikes": Port("graded" if self.graded else "spikes"), **getattr(self.learning_rule, "reads", {})}

    def outputs(self, shapes: Mapping[str, Shape]) -> Mapping[str, Port]:
        """Return the output ports: `out_spikes`."""
        for port in getattr(self.learning_rule, "reads", ()):
            # A shape that is not known yet counts as right: it is asked for again.
            if math.prod(shapes.get(port, ())) != 1:
                raise BrainError(f"{port} is one number, and what arrives is {shapes[port]}\n  fix: connect one number")
        return {"out_spikes": Port("spikes", (self.units,))}

    def init(self, key: jax.Array, shapes: Mapping[str, Shape], *, dt: float, dtype: Any) -> State:
        """Return the initial state: at rest, with kernels, delays and signs drawn."""
        num_inputs = math.prod(shapes["in_spikes"])
        of_sign, of_soma, of_synapses, of_delays, of_rule = jax.random.split(key, 5)
        settings = jax.tree.map(own_rows, settings_state(self._components()))
        this = self.with_settings({SETTINGS: settings})
        state = {
            **({SETTINGS: settings} if settings else {}),
            "inhibitory": _inhibitory(of_sign, self.units, self.inhibitory_rate),
            "soma": this.soma.init(of_soma, self.units, dt=dt, dtype=dtype),
            "synapses": this.synapses.init(of_synapses, self.units, num_inputs, dt=dt, dtype=dtype),
            "delays": self.delays.init(of_delays, self.units, num_inputs, dt=dt),
        }
        if self.learning_rule:
            steps = self.delays.num_steps(dt=dt)
            state[RULE] = self.learning_rule.init(of_rule, self.units, num_inputs, steps, dt=dt, dtype=dtype)
        return state

    @property
    def makes_rows(self) -> bool:
        """Whether `init_rows` can make the rows of some neurons alone."""
        parts = (self, *self._components().values(), self.synapses.kernel)
        return all(is_outlays(part) for part in parts) and makes_rows(self.synapses.kernel)

    def init_rows(
        self, key: jax.Array, shapes: Mapping[str, Shape], numbers: jax.Array, *, dt: float, dtype: Any
    ) -> State:
        """Return the initial state with the rows of some neurons, those with these numbers, in their order."""
        own = replace(self, units=len(numbers))
        with initializing(SomeNeurons(numbers, self.units)):
            state = Neuron.init(own, key, shapes, dt=dt, dtype=dtype)
        signs = _inhibitory(jax.random.split(key, 5)[0], self.units, self.inhibitory_rate)
        return {**state, "inhibitory": signs[numbers]}

    def signs(self, state: State, read: Mapping[str, jax.Array]) -> Mapping[str, jax.Array]:
        """Return the inhibitory neurons."""
        return {"out_spikes": state["inhibitory"]}

    def with_signs(self, state: State, read: Mapping[str, jax.Array]) -> State:
        """Add which sources are inhibitory; a learning rule needs that before the first of them spikes."""
        return {**state, "delays": {**state["delays"], "inhibitory": read["in_spikes"]}}

    def step(self, state: State, inputs: Mapping[str, jax.Array], *, dt: float) -> tuple[State, dict[str, jax.Array]]:
        """Advance the state by one step of dt ms."""
        delays, arrivals = self.arrive(state["delays"], inputs["in_spikes"].reshape(-1))
        this, units = self.with_settings(state), len(state["inhibitory"])
        returned = this.synapses.step(state["synapses"], arrivals, dt=dt)
        synapses, current = checked_pair("synapses", self.synapses, returned, "current")
        check_current(self.synapses, current, units)
        soma, spikes = this.fire(state["soma"], current, dt=dt)
        after = {**state, "delays": delays, "synapses": synapses, "soma": soma}
        if self.learning_rule:
            read = {**inputs, "inhibitory": state["inhibitory"]}
            rule, kernel = self.learning_rule, synapses["kernel"]
            returned = rule.step(state[RULE], kernel, arrivals, spikes, read, dt=dt)
            after[RULE], kernel = checked_pair(RULE, rule, returned, "kernel")
            after["synapses"] = {**synapses, "kernel": kernel}
        return after, {"out_spikes": signed(spikes, state["inhibitory"])}

    def with_settings(self, state: State) -> Neuron:
        """Return the population with the settings by neuron that are in a state, as arrays."""
        settings = state.get(SETTINGS)
        if not settings:
            return self
        return with_settings(self, {name: with_settings(getattr(self, name), of) for name, of in settings.items()})

    def fire(self, state: State, current: jax.Array, *, dt: float) -> tuple[State, jax.Array]:
        """Return the state of the soma after a step, and which neurons spiked."""
        soma, spikes = checked_pair("soma", self.soma, self.soma.step(state, current, dt=dt), "spikes")
        check_spikes_of(self.soma, spikes, len(current))
        return soma, spikes

    def arrive(self, delays: State, arriving: jax.Array) -> tuple[State, Arrivals]:
        """Return the state of the delays after a step, and what arrives."""
        if not self.graded:
            return self.delays.step(delays, arriving)
        after, arrivals = self.delays.step(delays, jnp.sign(arriving).astype(jnp.int8))
        return after, replace(arrivals, values=arriving)

    def problems(self, *, dt: float) -> list[str]:
        """Report the problems of the components, each with the name of its component."""
        wrong = list(kind_problems(self._components(), _KINDS))
        if wrong:
            return wrong
        if not (isinstance(self.units, int) and 0 < self.units < 2**31):
            wrong.append(f"units is {self.units!r}\na whole number of neurons, at least 1 and below 2**31")
        if not 0 <= self.inhibitory_rate <= 1:
            wrong.append(f"inhibitory_rate is {self.inhibitory_rate:g}\na share from 0 to 1")
        if self.graded and not (isinstance(self.delays, NoDelays) and self.learning_rule is None):
            other = "delays" if not isinstance(self.delays, NoDelays) else RULE
            wrong.append(
                f"graded is true, and its {other}, {type(getattr(self, other)).__name__}, only knows spikes\n"
                "graded = false with an encoder before it; or no delays and no learning rule"
            )
        of_settings = list(setting_problems(self._components(), self.units))
        wrong += of_settings
        for name, component in self._components().items():
            # What a component says of settings, it says of numbers.
            if not any(sentence.startswith(f"{name}.") for sentence in of_settings):
                wrong += [f"{name}.{sentence}" for sentence in component.problems(dt=dt)]
        wrong += [f"soma.{sentence}" for sentence in self.soma.level_problems()]
        kernel = self.synapses.kernel
        wrong += [f"synapses.{sentence}" for sentence in kind_problems({"kernel": kernel}, {"kernel": Initializer})]
        if isinstance(kernel, Initializer):
            wrong += [f"synapses.kernel.{sentence}" for sentence in kernel.problems()]
        return wrong

    def _components(self) -> dict[str, Component]:
        there = {name: getattr(self, name) for name in ("soma", "synapses", "delays", RULE)}
        return {name: component for name, component in there.items() if component is not None}


_KINDS = {"soma": Soma, "synapses": Synapses, "delays": Delays, RULE: LearningRule}


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
