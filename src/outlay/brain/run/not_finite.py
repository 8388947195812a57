"""A run of a Brain that stopped because something was not finite: where, and what is left of the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from outlay.brain.module import BrainError
from outlay.brain.run.recording.recording import Recording
from outlay.core.error_types import Problem
from outlay.core.paths import flatten_paths


class BrainStopped(BrainError):
    """A run that could not go on.

    Attributes:
        recording: what was recorded until then.
        num_steps: how many steps were taken and are sound.
    """

    def __init__(self, headline: str, problems: list[Problem], recording: Recording, num_steps: int) -> None:
        super().__init__(headline, problems)
        self.recording = recording
        self.num_steps = num_steps


def first_not_finite(first: Mapping[str, Any]) -> tuple[int, list[str]] | None:
    """The step at which something was first not finite, and the modules where; None where all is well.

    Args:
        first: for each module the step, or -1.
    """
    bad = {module: int(step) for module, step in first.items() if int(step) >= 0}
    if not bad:
        return None
    step = min(bad.values())
    return step, [module for module, its in bad.items() if its == step]


def not_finite_problems(step: int, dt: float, modules: list[str], state: Mapping[str, Any]) -> list[Problem]:
    """One problem a module: which of its leaves hold what is no number.

    Args:
        step: the step, counted from 0.
        dt: the time of a step in ms.
        modules: the modules at fault.
        state: the state some steps after it.
    """
    problems = []
    for module in modules:
        counted = {path: _num_bad(leaf) for path, leaf in flatten_paths({module: state[module]})[0]}
        bad = [f"{path} ({number:,} of {size:,})" for path, (number, size) in counted.items() if number]
        problems.append(
            Problem(
                "not finite",
                module,
                f"NaN or infinity in step {step} ({step * dt:g} ms): {', '.join(bad) or 'in its outputs'}",
                "a smaller dt or learning rate, smaller inputs, or dtype float32",
            )
        )
    return problems


def _num_bad(leaf: Any) -> tuple[int, int]:
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        return 0, leaf.size
    return int(np.count_nonzero(~np.isfinite(np.asarray(leaf).astype(np.float32)))), leaf.size
