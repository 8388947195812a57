"""Delays: how many steps a spike travels, and the spikes that arrive in a step."""

from __future__ import annotations

import abc
import functools
import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from outlay.brain.connections import LONGEST
from outlay.brain.initializers import by_neuron
from outlay.brain.module import Component, State, negative, not_positive
from outlay.brain.registry import register

BITS = 32
"""Bits of a word of past spikes."""
FEW_STEPS = 16
"""Up to so many past steps, choosing among all of them is faster than looking one up for each pair."""


@dataclass(frozen=True)
class Arrivals:
    """The spikes that arrive in one step at neurons.

    Attributes:
        sent: which pre neurons spiked in this step, bool, (pre,).
        arrived: where a spike arrives, bool: of the shape of the delays, or (pre,).
        inhibitory: which pre neurons are inhibitory, (pre,).
        delays: how many steps each spike takes, at least 1: (post, pre), or (pre,) where all post neurons agree, or
            None where all are 1.
    """

    sent: jax.Array
    arrived: jax.Array
    inhibitory: jax.Array
    delays: jax.Array | None = None

    def delayed(self, past: jax.Array) -> jax.Array:
        """What each pair sees of something that pre neurons had in past steps.

        Args:
            past: it, newest first, (steps, pre).
        """
        if self.delays is None:
            return past[0]
        age = self.delays.astype(jnp.int32) - 1
        rows = past[:, None] if self.delays.ndim == 2 else past
        if len(past) > FEW_STEPS:
            return jnp.take_along_axis(past, age.reshape(-1, past.shape[1]), axis=0).reshape(age.shape)
        seen = rows[0]
        for steps in range(1, len(past)):
            seen = jnp.where(age == steps, rows[steps], seen)
        return seen

    def at(self, neuron: jax.Array) -> Arrivals:
        """Those at one post neuron."""
        if self.delays is None or self.delays.ndim == 1:
            return self
        row = functools.partial(jax.lax.dynamic_index_in_dim, index=neuron, keepdims=False)
        return replace(self, arrived=row(self.arrived), delays=row(self.delays))


class Delays(Component, abc.ABC):
    """How long spikes travel. What is on its way, and who is inhibitory, is kept for each pre neuron, not each pair."""

    by_neuron: ClassVar[tuple[str, ...]] = ()

    @abc.abstractmethod
    def num_steps(self, *, dt: float) -> int:
        """How many past steps are kept."""

    @abc.abstractmethod
    def init(self, key: jax.Array, units: int, num_inputs: int, *, dt: float) -> State:
        """The state before the first step: nothing is on its way."""

    def step(self, state: State, spikes: jax.Array) -> tuple[State, Arrivals]:
        """Send the spikes of this step, and see which arrive.

        Args:
            state: the state before it.
            spikes: of this step, (pre,), +1, -1 or 0.
        """
        sent = spikes != 0
        history = pushed(state["history"], sent)
        # A neuron is inhibitory or not for good; a spike is where its sign is seen.
        inhibitory = jnp.where(sent, spikes < 0, state["inhibitory"])
        # Else every pair would compute the history of its pre neuron anew.
        history, inhibitory = jax.lax.optimization_barrier((history, inhibitory))
        arrived = arrives(history, state.get("delays"))
        after = {**state, "history": history, "inhibitory": inhibitory}
        return after, Arrivals(sent, arrived, inhibitory, state.get("delays"))


def nothing_sent(num_inputs: int, num_steps: int) -> dict[str, jax.Array]:
    """The part of the state that is about pre neurons before the first step."""
    return {
        "history": jnp.zeros((-(-num_steps // BITS), num_inputs), jnp.uint32),
        "inhibitory": jnp.zeros(num_inputs, bool),
    }


def arrives(history: jax.Array, delays: jax.Array | None) -> jax.Array:
    """Where a spike arrives: a bit of what a pre neuron did in past steps, which is kept once for all pairs.

    Args:
        history: past spikes of each pre neuron, (words, pre): bit k of word w is that of 32w + k steps ago.
        delays: as those of `Arrivals`.
    """
    if delays is None:
        return (history[0] & 1) != 0
    delays = delays.astype(jnp.uint32)
    words = history[:, None] if delays.ndim == 2 else history
    word = words[0]
    for index in range(1, len(words)):
        word = jnp.where((delays - 1) // BITS == index, words[index], word)
    # The bit asked for, (delay - 1) % BITS, becomes the sign bit: the fewest instructions a pair.
    arrived = (word << ((BITS - delays) % BITS)).astype(jnp.int32) < 0
    # Of one word XLA may compute it again where that is faster than to read it back; of several words it never is.
    return arrived if len(words) == 1 else jax.lax.optimization_barrier(arrived)


def pushed(history: jax.Array, spiked: jax.Array) -> jax.Array:
    """The history after one more step."""
    carried = jnp.concatenate([spiked[None].astype(jnp.uint32), history[:-1] >> (BITS - 1)])
    return (history << 1) | carried


def delay_dtype(num_steps: int) -> Any:
    """The smallest integers that hold delays of so many steps."""
    return next(dtype for dtype in (jnp.uint8, jnp.uint16, jnp.uint32) if num_steps <= jnp.iinfo(dtype).max)


@register("none", kind="delays")
@dataclass(frozen=True)
class NoDelays(Delays):
    """No delay: a spike arrives in the step in which it is read.

    State: `history` (1, pre), whose bit 0 is the spike of this step; `inhibitory` (pre,): whose spikes are negative.
    """

    def num_steps(self, *, dt: float) -> int:
        """One."""
        return 1

    def init(self, key: jax.Array, units: int, num_inputs: int, *, dt: float) -> State:
        """Nothing on its way."""
        return dict(nothing_sent(num_inputs, 1))


@dataclass(frozen=True)
class DrawnDelays(Delays):
    """Delays of A to B steps, all as likely, with A = min_delay / dt, at least 1, and B = max_delay / dt.

    Attributes:
        max_delay: the longest delay, ms.
        min_delay: the shortest delay, ms; that of one step if it is shorter.
    """

    max_delay: float = field(default=8.0, metadata={"unit": "ms"})
    min_delay: float = field(default=0.0, metadata={"unit": "ms"})

    def num_steps(self, *, dt: float) -> int:
        """B."""
        return _whole_steps(self.max_delay, dt)

    def draw(self, key: jax.Array, shape: tuple[int, ...], *, dt: float) -> jax.Array:
        """Delays in steps, A to B."""
        return jax.random.randint(key, shape, _whole_steps(self.min_delay, dt), self.num_steps(dt=dt) + 1)

    def problems(self, *, dt: float) -> list[str]:
        """A longest delay that is not positive, or shorter than a step or than the shortest."""
        wrong = not_positive(self, "max_delay") + negative(self, "min_delay")
        if not wrong and self.min_delay > self.max_delay:
            wrong.append(
                f"min_delay is {self.min_delay:g} ms and max_delay is {self.max_delay:g} ms\n"
                "a min_delay of at most max_delay"
            )
        if not wrong and self.max_delay < dt:
            wrong.append(
                f"max_delay is {self.max_delay:g} ms, shorter than a step of {dt:g} ms\n"
                f"at least {dt:g} ms, or a smaller dt"
            )
        return wrong or [sentence for name in ("min_delay", "max_delay") for sentence in self._off_the_grid(name, dt)]

    def _off_the_grid(self, name: str, dt: float) -> list[str]:
        """A delay that is no whole number of steps."""
        delay = getattr(self, name)
        if delay / dt > LONGEST:
            return [f"{name} is {delay:g} ms, {delay / dt:g} steps of dt = {dt:g} ms\nat most {LONGEST} steps"]
        if abs(delay / dt - round(delay / dt)) <= 1e-6 * max(1, delay / dt):
            return []
        what = f"{name} is {delay:g} ms, {delay / dt:g} steps of dt = {dt:g} ms"
        return [f"{what}\na whole number of steps, such as {math.ceil(delay / dt) * dt:g} ms"]


def _whole_steps(delay: float, dt: float) -> int:
    # 0.3 / 0.1 is 2.9999999999999996, and 0.7 / 0.1 is 6.999999999999999: both mean what people wrote.
    return max(1, math.ceil(round(delay / dt, 6)))


@register("n2n", kind="delays")
@dataclass(frozen=True)
class N2NDelays(DrawnDelays):
    """A delay for each pair of neurons.

    A spike of pre neuron j arrives at post neuron i in step t + d[i,j] - 1 if it is read in step t, with d from A to B,
    all as likely, A = min_delay / dt, at least 1, and B = max_delay / dt.

    Source: `N2NDelays` of Spark (Nogarx/Spark).

    State: `delays` (post, pre), in steps; `history` (words, pre), bit-packed: bit k of word w is the spike of 32w + k
    steps ago; `inhibitory` (pre,): whose spikes are negative.

    Attributes:
        max_delay: the longest delay, ms.
        min_delay: the shortest delay, ms; that of one step if it is shorter.
    """

    by_neuron: ClassVar[tuple[str, ...]] = ("delays",)

    def init(self, key: jax.Array, units: int, num_inputs: int, *, dt: float) -> State:
        """Delays drawn, and nothing on its way."""
        steps = self.num_steps(dt=dt)
        drawn = by_neuron(lambda key, shape: self.draw(key, shape, dt=dt), key, (units, num_inputs))
        return {"delays": drawn.astype(delay_dtype(steps)), **nothing_sent(num_inputs, steps)}


@register("n", kind="delays")
@dataclass(frozen=True)
class NDelays(DrawnDelays):
    """A delay for each pre neuron, the same to all post neurons.

    A spike of pre neuron j arrives everywhere in step t + d[j] - 1 if it is read in step t, with d from A to B, all as
    likely, A = min_delay / dt, at least 1, and B = max_delay / dt.

    Source: `NDelays` of Spark (Nogarx/Spark).

    State: `delays` (pre,), in steps; `history` (words, pre) and `inhibitory` (pre,) as in `N2NDelays`.

    Attributes:
        max_delay: the longest delay, ms.
        min_delay: the shortest delay, ms; that of one step if it is shorter.
    """

    def init(self, key: jax.Array, units: int, num_inputs: int, *, dt: float) -> State:
        """Delays drawn, and nothing on its way."""
        steps = self.num_steps(dt=dt)
        drawn = self.draw(key, (num_inputs,), dt=dt)
        return {"delays": drawn.astype(delay_dtype(steps)), **nothing_sent(num_inputs, steps)}
