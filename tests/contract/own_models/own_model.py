"""What a stand-in of a public model is: its own training loop on one device, and the same laid out by Outlay."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import outlay

EPSILON = 1e-3
"""Of Adam here: a bias before a norm has a gradient of nothing but rounding, which its usual epsilon makes steps of."""

BEGINS, ENDS = "# With Outlay:", "return OwnModel("


@dataclass(frozen=True)
class OwnModel:
    """A model whose parts are trained by its own loop: `*parts, outputs = train(*parts, batch)`.

    Attributes:
        init: from a key to the parts, a tuple.
        train: its own step on one device, as it would be jitted there.
        batch: an example of a batch.
        program: the same laid out.
        parts: the names of the parts in the program's state; none where the only part is the state.
        tolerance: by how much numbers of order one may differ: by rounding, in float32 or in bfloat16.
    """

    init: Callable[[Any], tuple[Any, ...]]
    train: Callable[..., tuple[Any, ...]]
    batch: Any
    program: outlay.Program
    parts: Sequence[str] = ()
    tolerance: float = 2e-5

    def parts_of(self, state: Any) -> list[Any]:
        """The parts that a state of the program holds, in the author's order."""
        return [state[name] for name in self.parts] if self.parts else [state]


def lines_for_outlay(make: Callable[[], OwnModel]) -> list[str]:
    """The lines of a stand-in that lay it out: what its author would add to a loop that runs on one device."""
    source = textwrap.dedent(inspect.getsource(make)).splitlines()
    start = next(number for number, line in enumerate(source) if line.strip() == BEGINS)
    end = next(number for number, line in enumerate(source) if line.strip().startswith(ENDS))
    return [line.strip() for line in source[start + 1 : end] if line.strip()]


def row_of_guide(make: Callable[[], OwnModel]) -> str:
    """A stand-in as a row of the table in the guide: its model, its library, what is special, and how many lines."""
    model, library, special = (make.__doc__ or "").rstrip(".").split(" | ")
    return f"| {model} | {library} | {special} | {len(lines_for_outlay(make))} |"
