"""The inputs of a Brain for any range of steps, from arrays, functions of the step, or numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from outlay.brain.module import BrainError, Shape
from outlay.errors import Problem
from outlay.kit import counted, did_you_mean, is_real

_NUM_COMPARED = 5
"""The number of steps in the digest of inputs; few, since a user may fix later inputs before continuing a run."""

Batch = dict[str, np.ndarray]
Outputs = Mapping[str, np.ndarray]


class Feed(Protocol):
    """A source of inputs for a Brain, which may depend on its outputs; one that does not needs only `batch`.

    Attributes:
        listens: whether the inputs of later steps depend on earlier outputs.
        num_steps: the number of steps with inputs; None for any number.
    """

    listens: bool = False
    num_steps: int | None = None

    def steps_from(self, start: int, most: int) -> int:
        """Return how many steps to feed together from `start` on, at most `most`."""
        return most

    def batch(self, start: int, stop: int) -> Batch:
        """Return the inputs of the steps from `start` up to `stop`, with a leading dim of `stop - start`."""
        ...

    def receive(self, start: int, outputs: Outputs) -> None:
        """Receive the outputs of the steps from `start` on."""

    def digest(self) -> str:
        """Return a short digest of the inputs of the first steps; empty if they are unknown in advance."""
        return ""

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the state on which later inputs depend, besides the number of the step."""
        return {}

    def continue_from(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Continue from the arrays of `to_arrays`; other arrays are ignored."""


Value = Callable[[int], Any] | np.ndarray


class Stimulus(Feed):
    """Inputs that do not depend on the Brain's outputs.

    Args:
        shapes: the shapes of the Brain's inputs by name.
        values: for each input, an array with one entry per step; or an array of the input's shape or a number, constant
            over time; or a function that maps the step, counted from 0, to one of these two.
        dtype: the dtype of the Brain.

    Raises:
        BrainError: an input is missing, unknown, or has another shape; the message lists all of them.

    Example:
        >>> feed = Stimulus({"light": (3,)}, {"light": lambda step: [step, 0, 0]}, np.dtype("float32"))
        >>> feed.batch(5, 7)["light"].tolist()
        [[5.0, 0.0, 0.0], [6.0, 0.0, 0.0]]
    """

    def __init__(self, shapes: Mapping[str, Shape], values: Mapping[str, Any], dtype: np.dtype) -> None:
        self._shapes = {name: tuple(shape) for name, shape in shapes.items()}
        self._dtype = dtype
        given = {name: value if callable(value) else np.asarray(value) for name, value in values.items()}
        problems = [*_absent(self._shapes, given), *_misshapen(self._shapes, given)]
        if problems:
            raise BrainError(
                f"{counted(len(problems), 'input of the Brain does', 'inputs of the Brain do')} not fit", problems
            )
        self._values: dict[str, Value] = given
        lengths = {
            name: len(value)
            for name, value in given.items()
            if isinstance(value, np.ndarray) and value.ndim == len(self._shapes[name]) + 1
        }
        self.num_steps = min(lengths.values(), default=None)

    def batch(self, start: int, stop: int) -> Batch:
        """Return the inputs of some steps.

        Raises:
            BrainError: the inputs end before, or a function returned another shape.
        """
        if self.num_steps is not None and stop > self.num_steps:
            raise BrainError(
                f"the inputs end after {self.num_steps} steps, but the run needs {stop}"
                f"\n  fix: {self.num_steps} steps, longer arrays, or a function of the step"
            )
        if not self._shapes:
            # Nothing reads it; the loop takes the number of steps from its leading dim.
            return {"step": np.arange(start, stop, dtype=np.int32)}
        return {name: self._steps_of(name, start, stop) for name in self._shapes}

    def digest(self) -> str:
        """Hash the inputs of the first steps."""
        stop = min(_NUM_COMPARED, self.num_steps or _NUM_COMPARED)
        digest = hashlib.sha256()
        # In whatever order the inputs are given, the digest is the same.
        for name in sorted(self._shapes):
            digest.update(self._steps_of(name, 0, stop).tobytes())
        return digest.hexdigest()[:12]

    def _steps_of(self, name: str, start: int, stop: int) -> np.ndarray:
        shape, value = self._shapes[name], self._values[name]
        if callable(value):
            return np.stack([self._called(name, value, step) for step in range(start, stop)]).astype(self._dtype)
        if value.ndim == len(shape) + 1:
            return np.asarray(value[start:stop]).astype(self._dtype)
        return np.broadcast_to(value.astype(self._dtype), (stop - start, *shape))

    def _called(self, name: str, function: Callable[[int], Any], step: int) -> np.ndarray:
        value, shape = np.asarray(function(step)), self._shapes[name]
        if not is_real(value.dtype):
            raise BrainError(
                f"the function of input {name!r} returned {value.dtype} for step {step}, not numbers"
                f"\n  fix: return an array of real numbers of shape {shape}"
            )
        if value.shape not in (shape, ()):
            raise BrainError(
                f"the function of input {name!r} returned shape {value.shape} for step {step}, and the input has "
                f"{shape}\n  fix: return an array of shape {shape}"
            )
        return np.broadcast_to(value, shape)


def below(prefix: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Select the arrays whose names begin with a prefix, by the rest of their names."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def check_finite(batch: Batch, start: int) -> None:
    """Raise for inputs with NaN or infinity, before they reach the state of a Brain.

    Args:
        batch: the inputs of some steps.
        start: the first of these steps.
    """
    problems = []
    for name, values in batch.items():
        bad = np.argwhere(~np.isfinite(values.astype(np.float32)))
        if len(bad):
            step, *index = (int(i) for i in bad[0])
            value = values[tuple(bad[0])]
            at = f" at [{', '.join(map(str, index))}]" if index else ""
            problems.append(
                Problem(
                    "input",
                    name,
                    f"it is {value} in step {start + step}{at}; in {counted(len(bad), 'place')} of the steps "
                    f"{start} to {start + len(values) - 1}",
                    "inputs that are finite numbers",
                )
            )
    if problems:
        raise BrainError(
            f"the run stopped before step {start}: {counted(len(problems), 'input is', 'inputs are')} not finite",
            problems,
        )


def _absent(shapes: Mapping[str, Shape], given: Mapping[str, Any]) -> list[Problem]:
    missing = [
        Problem("input", name, f"nothing is given for it; its shape is {shape}", f"an array of shape {_by_step(shape)}")
        for name, shape in shapes.items()
        if name not in given
    ]
    unknown = [
        Problem("input", name, "the Brain has no such input", did_you_mean(name, shapes))
        for name in given
        if name not in shapes
    ]
    return [*missing, *unknown]


def _misshapen(shapes: Mapping[str, Shape], given: Mapping[str, Any]) -> list[Problem]:
    problems = []
    for name, value in given.items():
        if name not in shapes or callable(value):
            continue
        shape = shapes[name]
        if np.issubdtype(value.dtype, np.complexfloating):
            what = f"it holds {value.dtype}, and a Brain computes with real numbers"
            problems.append(Problem("input", name, what, "its real part, x.real, or two inputs"))
        elif not is_real(value.dtype):
            problems.append(Problem("input", name, f"it holds {value.dtype}, not numbers", "an array of numbers"))
        elif value.shape not in ((), shape) and value.shape[1:] != shape:
            problems.append(
                Problem(
                    "input",
                    name,
                    f"an array of shape {value.shape} is given, and the input has {shape}",
                    f"shape {_by_step(shape)}, or {shape} for the same in every step",
                )
            )
    return problems


def _by_step(shape: Shape) -> str:
    return f"(steps, {', '.join(map(str, shape))})" if shape else "(steps,)"
