"""No delays."""

from __future__ import annotations

from dataclasses import dataclass

import jax

from outlay.brain.component import State
from outlay.brain.delays.base import Delays, nothing_sent
from outlay.brain.registry import register


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
