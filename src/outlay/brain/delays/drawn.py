"""Delays that are drawn at random once, for each pair or for each pre neuron."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import jax

from outlay.brain.component import State
from outlay.brain.delays.base import Delays, delay_dtype, nothing_sent
from outlay.brain.initializers import by_neuron
from outlay.brain.registry import register
from outlay.brain.spikers.settings import not_positive


@dataclass(frozen=True)
class DrawnDelays(Delays):
    """Delays of 1 to B steps, all as likely, with B = ⌈max_delay / dt⌉.

    Attributes:
        max_delay: the longest delay, ms.
    """

    max_delay: float = field(default=8.0, metadata={"unit": "ms"})

    def num_steps(self, *, dt: float) -> int:
        """B."""
        # 0.3 / 0.1 is 2.9999999999999996, and 0.7 / 0.1 is 6.999999999999999: both mean what people wrote.
        return max(1, math.ceil(round(self.max_delay / dt, 6)))

    def problems(self, *, dt: float) -> list[str]:
        """A longest delay that is not positive, or shorter than a step."""
        wrong = not_positive(self, "max_delay")
        if not wrong and self.max_delay < dt:
            wrong.append(
                f"max_delay is {self.max_delay:g} ms, shorter than a step of {dt:g} ms\n"
                f"at least {dt:g} ms, or a smaller dt"
            )
        return wrong


@register("n2n", kind="delays")
@dataclass(frozen=True)
class N2NDelays(DrawnDelays):
    """A delay for each pair of neurons.

    A spike of pre neuron j arrives at post neuron i in step t + d[i,j] - 1 if it is read in step t, with d from 1 to B.

    Source: `N2NDelays` of Spark (Nogarx/Spark).

    State: `delays` (post, pre), in steps; `history` (words, pre), bit-packed: bit k of word w is the spike of 32w + k
    steps ago; `inhibitory` (pre,): whose spikes are negative.

    Attributes:
        max_delay: the longest delay, ms.
    """

    by_neuron: ClassVar[tuple[str, ...]] = ("delays",)

    def init(self, key: jax.Array, units: int, num_inputs: int, *, dt: float) -> State:
        """Delays drawn, and nothing on its way."""
        steps = self.num_steps(dt=dt)
        drawn = by_neuron(lambda key, shape: jax.random.randint(key, shape, 1, steps + 1), key, (units, num_inputs))
        return {"delays": drawn.astype(delay_dtype(steps)), **nothing_sent(num_inputs, steps)}


@register("n", kind="delays")
@dataclass(frozen=True)
class NDelays(DrawnDelays):
    """A delay for each pre neuron, the same to all post neurons.

    A spike of pre neuron j arrives everywhere in step t + d[j] - 1 if it is read in step t, with d from 1 to B.

    Source: `NDelays` of Spark (Nogarx/Spark).

    State: `delays` (pre,), in steps; `history` (words, pre) and `inhibitory` (pre,) as in `N2NDelays`.

    Attributes:
        max_delay: the longest delay, ms.
    """

    def init(self, key: jax.Array, units: int, num_inputs: int, *, dt: float) -> State:
        """Delays drawn, and nothing on its way."""
        steps = self.num_steps(dt=dt)
        drawn = jax.random.randint(key, (num_inputs,), 1, steps + 1)
        return {"delays": drawn.astype(delay_dtype(steps)), **nothing_sent(num_inputs, steps)}
