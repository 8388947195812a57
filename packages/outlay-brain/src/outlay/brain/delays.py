"""Axonal delays in steps, and the spikes that arrive in a step."""

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
from outlay.kit import OneLine

BITS = 32
"""The number of bits in a word of past spikes."""
FEW_WORDS = 8
"""Up to this many words of past spikes, selecting among all of them is faster than a gather for each pair. Beyond, one
gather takes the same time to trace and compile whatever the delay."""
FEW_STEPS = 16
"""Up to this many past steps, selecting among all of them is faster than a gather for each pair."""


@dataclass(frozen=True)
class Arrivals(OneLine):
    """The spikes that arrive at neurons in one step.

    Attributes:
        sent: which pre neurons spiked in this step, bool, (pre,).
        arrived: where a spike arrives, bool, in the shape of the delays, or (pre,).
        inhibitory: which pre neurons are inhibitory, (pre,).
        delays: the delays in steps, at least 1: (post, pre), or (pre,) if they are the same for all post neurons, or
            None if all are 1.
        most_selected: up to how many past steps `delayed` selects among all of them.
        values: the numbers that arrive where input is graded, (pre,); None where only spikes arrive.
    """

    sent: jax.Array
    arrived: jax.Array
    inhibitory: jax.Array
    delays: jax.Array | None = None
    most_selected: int = FEW_STEPS
    values: jax.Array | None = None

    def delayed(self, past: jax.Array) -> jax.Array:
        """Look up a quantity of pre neurons at the delay of each pair.

        Args:
            past: the quantity in past steps, newest first, (steps, pre).
        """
        if self.delays is None:
            return past[0]
        age = self.delays.astype(jnp.int32) - 1
        rows = past[:, None] if self.delays.ndim == 2 else past
        if len(past) > self.most_selected:
            return jnp.take_along_axis(past, age.reshape(-1, past.shape[1]), axis=0).reshape(age.shape)
        # Each bit of an age halves the rows that it may be of, which takes fewer comparisons than one for each row.
        seen, bit = [rows[steps] for steps in range(len(past))], 1
        while len(seen) > 1:
            is_later = (age & bit) != 0
            alone = seen[-1:] if len(seen) % 2 else []
            seen = [jnp.where(is_later, *both) for both in zip(seen[1::2], seen[::2], strict=False)] + alone
            bit *= 2
        return jnp.broadcast_to(seen[0], jnp.broadcast_shapes(age.shape, seen[0].shape))

    def at(self, neuron: jax.Array) -> Arrivals:
        """Select the spikes that arrive at one post neuron."""
        if self.delays is None or self.delays.ndim == 1:
            return self
        row = functools.partial(jax.lax.dynamic_index_in_dim, index=neuron, keepdims=False)
        return replace(self, arrived=row(self.arrived), delays=row(self.delays))


class Delays(Component, abc.ABC):
    """Axonal delays. The spikes in flight and the signs are stored per pre neuron, not per pair."""

    by_neuron: ClassVar[tuple[str, ...]] = ()

    @abc.abstractmethod
    def num_steps(self, *, dt: float) -> int:
        """Return the number of past steps to store."""

    @abc.abstractmethod
    def init(self, key: jax.Array, units: int, num_inputs: int, *, dt: float) -> State:
        """Return the initial state: no spikes in flight."""

    def step(self, state: State, spikes: jax.Array) -> tuple[State, Arrivals]:
        """Send the spikes of this step, and return the arriving ones.

        Args:
            state: the state before the step.
            spikes: the spikes of this step, (pre,), +1, -1 or 0.
        """
        sent = spikes != 0
        history = pushed(state["history"], sent)
        # The sign of a neuron never changes, but it is only visible when the neuron spikes.
        inhibitory = jnp.where(sent, spikes < 0, state["inhibitory"])
        # Without the barrier XLA fuses this into its consumer and recomputes the history for every pair.
        history, inhibitory = jax.lax.optimization_barrier((history, inhibitory))
        arrived = arrives(history, state.get("delays"))
        after = {**state, "history": history, "inhibitory": inhibitory}
        return after, Arrivals(sent, arrived, inhibitory, state.get("delays"))


def nothing_sent(num_inputs: int, num_steps: int) -> State:
    """Return the initial state of the pre neurons."""
    return {
        "history": jnp.zeros((-(-num_steps // BITS), num_inputs), jnp.uint32),
        "inhibitory": jnp.zeros(num_inputs, bool),
    }


def arrives(history: jax.Array, delays: jax.Array | None) -> jax.Array:
    """Look up where a spike arrives in the bit-packed past spikes of pre neurons, which all pairs share.

    Args:
        history: past spikes of each pre neuron, (words, pre): bit k of word w is the spike of 32w + k steps ago.
        delays: as in `Arrivals`.
    """
    if delays is None:
        return (history[0] & 1) != 0
    delays = delays.astype(jnp.uint32)
    words = history[:, None] if delays.ndim == 2 else history
    if len(words) > FEW_WORDS:
        places = ((delays - 1) // BITS).astype(jnp.int32)
        word = jnp.take_along_axis(history, places.reshape(-1, history.shape[1]), axis=0).reshape(delays.shape)
    else:
        word = words[0]
        for index in range(1, len(words)):
            word = jnp.where((delays - 1) // BITS == index, words[index], word)
    # Shift bit (delay - 1) % BITS into the sign bit: a comparison with 0 then takes the fewest instructions per pair.
    arrived = (word << ((BITS - delays) % BITS)).astype(jnp.int32) < 0
    # With one word, XLA may recompute this if that is faster than reading it back; with several words it never is.
    return arrived if len(words) == 1 else jax.lax.optimization_barrier(arrived)


def pushed(history: jax.Array, spiked: jax.Array) -> jax.Array:
    """Push the spikes of one more step into the history."""
    carried = jnp.concatenate([spiked[None].astype(jnp.uint32), history[:-1] >> (BITS - 1)])
    return (history << 1) | carried


def delay_dtype(num_steps: int) -> Any:
    """Return the smallest integer dtype for delays of this many steps."""
    # There is a delay for each pair, so that its bytes count.
    return next(dtype for dtype in (jnp.uint8, jnp.uint16, jnp.uint32) if num_steps <= jnp.iinfo(dtype).max)


@register("none", kind="delays")
@dataclass(frozen=True)
class NoDelays(Delays):
    """No delay: a spike arrives in the step in which it is read.

    State: `history` (1, pre), whose bit 0 is the spike of this step; `inhibitory` (pre,): which neurons are inhibitory.
    """

    def num_steps(self, *, dt: float) -> int:
        """Return 1."""
        return 1

    def init(self, key: jax.Array, units: int, num_inputs: int, *, dt: float) -> State:
        """Return the initial state: no spikes in flight."""
        return nothing_sent(num_inputs, 1)


@dataclass(frozen=True)
class DrawnDelays(Delays):
    """Uniformly random delays of A to B steps, with A = min_delay / dt, at least 1, and B = max_delay / dt.

    Attributes:
        max_delay: the longest delay, ms.
        min_delay: the shortest delay, ms; that of one step if it is shorter.
    """

    max_delay: float = field(default=8.0, metadata={"unit": "ms"})
    min_delay: float = field(default=0.0, metadata={"unit": "ms"})

    def num_steps(self, *, dt: float) -> int:
        """Return B."""
        return _whole_steps(self.max_delay, dt)

    def draw(self, key: jax.Array, shape: tuple[int, ...], *, dt: float) -> jax.Array:
        """Draw delays in steps, from A to B."""
        return jax.random.randint(key, shape, _whole_steps(self.min_delay, dt), self.num_steps(dt=dt) + 1)

    def problems(self, *, dt: float) -> list[str]:
        """Report a longest delay that is not positive, or shorter than a step or than the shortest delay."""
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
        """Report a delay that is not a whole number of steps."""
        delay = getattr(self, name)
        what = f"{name} is {delay:g} ms, {delay / dt:g} steps of dt = {dt:g} ms"
        if delay / dt > LONGEST:
            return [f"{what}\nat most {LONGEST} steps"]
        # Relative: the rounding of a quotient grows with it.
        if abs(delay / dt - round(delay / dt)) <= 1e-6 * max(1, delay / dt):
            return []
        return [f"{what}\na whole number of steps, such as {math.ceil(delay / dt) * dt:g} ms"]


def _whole_steps(delay: float, dt: float) -> int:
    # 0.3 / 0.1 is 2.9999999999999996, and 0.7 / 0.1 is 6.999999999999999: round as the user meant it.
    return max(1, math.ceil(round(delay / dt, 6)))


@register("n2n", kind="delays")
@dataclass(frozen=True)
class N2NDelays(DrawnDelays):
    """A delay for each pair of neurons.

    A spike of pre neuron j that is read in step t arrives at post neuron i in step t + d[i,j] - 1, with d uniform from
    A to B, A = min_delay / dt, at least 1, and B = max_delay / dt.

    Source: `N2NDelays` of Spark (Nogarx/Spark).

    State: `delays` (post, pre), in steps; `history` (words, pre), bit-packed: bit k of word w is the spike of 32w + k
    steps ago; `inhibitory` (pre,): which neurons are inhibitory.

    Attributes:
        max_delay: the longest delay, ms.
        min_delay: the shortest delay, ms; that of one step if it is shorter.
    """

    by_neuron: ClassVar[tuple[str, ...]] = ("delays",)

    def init(self, key: jax.Array, units: int, num_inputs: int, *, dt: float) -> State:
        """Return the initial state: random delays, no spikes in flight."""
        steps = self.num_steps(dt=dt)
        drawn = by_neuron(lambda key, shape: self.draw(key, shape, dt=dt), key, (units, num_inputs))
        return {"delays": drawn.astype(delay_dtype(steps)), **nothing_sent(num_inputs, steps)}


@register("n", kind="delays")
@dataclass(frozen=True)
class NDelays(DrawnDelays):
    """A delay for each pre neuron, the same to all post neurons.

    A spike of pre neuron j that is read in step t arrives everywhere in step t + d[j] - 1, with d uniform from A to B,
    A = min_delay / dt, at least 1, and B = max_delay / dt.

    Source: `NDelays` of Spark (Nogarx/Spark).

    State: `delays` (pre,), in steps; `history` (words, pre) and `inhibitory` (pre,) as in `N2NDelays`.

    Attributes:
        max_delay: the longest delay, ms.
        min_delay: the shortest delay, ms; that of one step if it is shorter.
    """

    def init(self, key: jax.Array, units: int, num_inputs: int, *, dt: float) -> State:
        """Return the initial state: random delays, no spikes in flight."""
        steps = self.num_steps(dt=dt)
        drawn = self.draw(key, (num_inputs,), dt=dt)
        return {"delays": drawn.astype(delay_dtype(steps)), **nothing_sent(num_inputs, steps)}
