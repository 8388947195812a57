"""What stages of a pipeline do: an action, and how many microbatches a stage holds after each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from outlay.core.one_line import OneLine

Kind = Literal["forward", "backward", "inputs", "weights"]
"""What a stage computes: a forward pass, a backward pass, or one of its halves, for inputs or for weights."""

LETTERS: dict[Kind, str] = {"forward": "F", "backward": "B", "inputs": "I", "weights": "W"}
NUM_TICKS: dict[Kind, int] = {"forward": 1, "backward": 2, "inputs": 1, "weights": 1}
"""How many ticks each takes: a whole backward pass as many as its two halves."""
CHANGE_OF_HELD: dict[Kind, int] = {"forward": 1, "backward": -1, "inputs": 0, "weights": -1}
"""How many more microbatches a stage holds afterwards."""


@dataclass(frozen=True, order=True)
class Action(OneLine):
    """What one stage does at one time.

    Attributes:
        tick: when it begins, from 0.
        stage: the stage.
        microbatch: the microbatch.
        kind: `forward`; `backward`; or its halves, `inputs` and `weights`.
        repeat: which of the stage's groups of layers, where a microbatch goes round several times.
    """

    tick: int
    stage: int
    microbatch: int
    kind: Kind
    repeat: int = 0

    @property
    def end(self) -> int:
        """The first tick after it."""
        return self.tick + NUM_TICKS[self.kind]

    @property
    def label(self) -> str:
        """Its letter and its microbatch, with a dot for each repeat before its own: `F3`, `B0`, `I2.`."""
        return f"{LETTERS[self.kind]}{self.microbatch}{'.' * self.repeat}"


def by_stage(actions: Iterable[Action], num_stages: int) -> tuple[tuple[Action, ...], ...]:
    """Return the actions of each stage, in their order."""
    stages: list[list[Action]] = [[] for _ in range(num_stages)]
    for each in sorted(actions):
        stages[each.stage].append(each)
    return tuple(map(tuple, stages))


def held_after(actions: Iterable[Action]) -> Iterator[tuple[Action, int]]:
    """Yield the actions of one stage in their order, each with how many microbatches it holds from then on."""
    held = 0
    for each in actions:
        held += CHANGE_OF_HELD[each.kind]
        yield each, held
