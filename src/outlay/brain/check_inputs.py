"""What is fed to a Brain in a step, against what it reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from outlay.brain.port import Shape
from outlay.core.errors import BrainError, Problem
from outlay.core.suggest import did_you_mean

if TYPE_CHECKING:
    from outlay.brain.brain import Brain


def refuse_other_inputs(brain: Brain, shapes: Mapping[str, Shape]) -> None:
    """Refuse inputs that a Brain does not have, lacks, or has in another shape.

    Args:
        brain: the Brain.
        shapes: of what is fed to it, by name.

    Raises:
        BrainError: something does not fit; every offender is listed.
    """
    problems = [
        Problem("input", name, f"the Brain has no input {name!r}", did_you_mean(name, brain.inputs))
        for name in shapes
        if name not in brain.inputs
    ]
    for name, want in brain.inputs.items():
        if name not in shapes:
            problems.append(Problem("input", name, "nothing is given for it", f"an array of shape {want}"))
        elif tuple(shapes[name]) != want:
            problems.append(
                Problem(
                    "input", name, f"it is {want}, and what is given is {shapes[name]}", f"an array of shape {want}"
                )
            )
    if problems:
        raise BrainError(f"these inputs do not fit the Brain: {len(problems)} problem(s)", problems)
