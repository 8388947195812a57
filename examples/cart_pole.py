"""A Brain that learns to balance a pole, in a closed loop with Gymnasium and with reward-modulated plasticity.

    python examples/cart_pole.py
    outlay run examples/cart_pole.py:recipe --steps 40000

The cart's senses excite cells that are tuned to different values. Two populations, `left` and `right`, read all cells,
and the one that spikes more in 20 ms pushes the cart its way. Its synapses then change by a three-factor rule: those
from active cells grow if the push made the fall slower, and shrink if it made it faster.
"""

import gymnasium
import numpy as np

import outlay
from outlay.brain import (
    Brain,
    Connection,
    LinearSynapses,
    Neuron,
    RefractoryLeakySoma,
    ThreeFactorRule,
    TopologicalPoissonSpiker,
    Uniform,
)

RANGES = np.array([2.4, 2.0, 0.21, 2.0])
"""The ranges of the cells: position (m), velocity (m/s), angle (rad) and angular velocity (rad/s)."""
NOT_MINE = -0.1
"""The reward at which the three-factor rule, gamma (reward + 0.1), changes nothing."""
STEPS_PER_ACTION = 20


def cart_pole_brain() -> Brain:
    """Connect sensory cells to one population for each direction."""
    cells = TopologicalPoissonSpiker(mins=-1.0, maxs=1.0, resolution=16, max_freq=200.0, sigma=1 / 16)
    population = Neuron(
        20,
        soma=RefractoryLeakySoma(resistance=1.0, cooldown=2.0),
        synapses=LinearSynapses(Uniform(3.0)),
        learning_rule=ThreeFactorRule(pre_tau=20.0, post_tau=20.0, gamma=0.02),
    )
    sides = ("left", "right")
    return Brain(
        {"cells": cells, **dict.fromkeys(sides, population)},
        [
            Connection("inputs:sensed", "cells:signal"),
            *(Connection("cells:spikes", f"{side}:in_spikes") for side in sides),
            *(Connection(f"inputs:reward_{side}", f"{side}:reward") for side in sides),
        ],
        inputs={"sensed": (4,), "reward_left": (1,), "reward_right": (1,)},
        outputs={side: f"{side}:out_spikes" for side in sides},
    )


class Senses:
    """Encode observations for the Brain, and decode its spikes to actions."""

    def __init__(self, seed: int = 0) -> None:
        self._draws = np.random.default_rng(seed)
        self._action, self._fall = 0, None

    def encode(self, observation: np.ndarray, reward: float) -> dict[str, np.ndarray]:
        """Scale the senses to -1 to 1, and reward the population that pushed if the pole now falls more slowly."""
        _, _, angle, turning = observation
        fall = abs(angle + 0.4 * turning)
        better = 0.0 if self._fall is None else float(np.clip((self._fall - fall) / 0.1, -1, 1))
        self._fall = fall
        heard = [NOT_MINE, NOT_MINE]
        heard[self._action] += better
        sensed = np.clip(observation / RANGES, -1, 1)
        return {"sensed": sensed, "reward_left": [heard[0]], "reward_right": [heard[1]]}

    def decode(self, outputs: dict[str, np.ndarray]) -> int:
        """Push to the side whose population spiked more."""
        left, right = outputs["left"].sum(), outputs["right"].sum()
        self._action = int(self._draws.integers(2)) if left == right else int(right > left)
        return self._action


def closed_loop(seed: int = 0) -> outlay.brain.ClosedLoop:
    """Connect the pole to its senses."""
    senses = Senses(seed)
    return outlay.brain.ClosedLoop(
        gymnasium.make("CartPole-v1"),
        encode=senses.encode,
        decode=senses.decode,
        steps_per_action=STEPS_PER_ACTION,
        seed=seed,
    )


def recipe(seed: int = 0) -> outlay.brain.BrainRecipe:
    """Return the recipe for `outlay run`."""
    return outlay.brain.BrainRecipe.of(
        cart_pole_brain(), name="cart_pole", inputs=closed_loop(seed), steps=40_000, seed=seed
    )


if __name__ == "__main__":
    run = outlay.brain.run_brain(cart_pole_brain(), steps=100_000, inputs=closed_loop(), progress=True)
    print(run)
