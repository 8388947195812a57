"""Delays that are drawn at random once, for each pair or for each pre neuron."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import jax

from outlay.brain.component import State
from outlay.brain.delays.delays import Delays, delay_dtype, nothing_sent
from outlay.brain.initializers import by_neuron
from outlay.brain.port import LONGEST
from outlay.brain.registry import register
from outlay.brain.spikers.spiker_settings import negative, not_positive


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
