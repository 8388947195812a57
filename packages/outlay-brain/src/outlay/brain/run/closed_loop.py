"""Closed loops of a Brain and an environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from outlay.brain.module import BrainError, Shape
from outlay.brain.run.feed import Batch, Feed, Outputs, Stimulus, below
from outlay.kit import counted


class Environment(Protocol):
    """An environment with the interface of Gymnasium."""

    def reset(self, *, seed: int | None = None) -> tuple[Any, Any]:
        """Start an episode; returns the observation and an info dictionary."""
        ...

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Any]:
        """Act; returns the observation, the reward, `terminated`, `truncated`, and an info dictionary."""
        ...


@dataclass(frozen=True)
class Episode:
    """An episode of a closed loop.

    Attributes:
        start: the Brain's step at its start.
        num_actions: the number of actions.
        reward: the total reward.
    """

    start: int
    num_actions: int
    reward: float


class ClosedLoop:
    """Connect a Brain to an environment; pass it as `outlay.brain.run_brain(inputs=...)`.

    The Brain runs `steps_per_action` steps on one observation, acts, and gets the next observation. When an episode
    ends, the next one starts, and the Brain keeps its state.

    Args:
        environment: an environment with `reset` and `step` as in Gymnasium.
        encode: maps an observation and the reward of the last action (0 before the first) to the Brain's inputs by
            name, which stay the same until the next action.
        decode: maps the Brain's outputs by name, each with a leading dim of `steps_per_action`, to an action.
        steps_per_action: the steps of the Brain between two actions.
        seed: the seed of the first episode.
        save: returns the complete state of the environment: arrays, numbers or strings by name. With `save` and
            `restore`, a run can be saved and continued as if it had never stopped.
        restore: takes an environment, such as a new one, and the result of `save` (as arrays), and restores its state.

    Attributes:
        episodes: the finished episodes, in order.
        can_be_saved: whether `save` and `restore` are given.

    Example:
        >>> class Still:
        ...     def reset(self, *, seed=None): return np.zeros(2), {}
        ...     def step(self, action): return np.ones(2), 1.0, False, False, {}
        >>> loop = outlay.brain.ClosedLoop(Still(), encode=lambda seen, reward: {"eye": seen}, decode=lambda outputs: 0)
        >>> loop.steps_per_action
        20
    """

    def __init__(
        self,
        environment: Environment,
        *,
        encode: Callable[[Any, float], Mapping[str, Any]],
        decode: Callable[[Outputs], Any],
        steps_per_action: int = 20,
        seed: int = 0,
        save: Callable[[Any], Mapping[str, Any]] | None = None,
        restore: Callable[[Any, Mapping[str, np.ndarray]], None] | None = None,
    ) -> None:
        if steps_per_action < 1:
            raise BrainError(f"steps_per_action={steps_per_action}: the Brain acts after 1 step or more")
        missing = [name for name in ("reset", "step") if not callable(getattr(environment, name, None))]
        if missing:
            raise BrainError(
                f"a {type(environment).__name__} is not an environment: it has no {' and no '.join(missing)}"
                "\n  fix: gymnasium.make(...), or a class with reset(seed=...) and step(action)"
            )
        if (save is None) != (restore is None):
            given, absent = ("save", "restore") if restore is None else ("restore", "save")
            raise BrainError(f"{given}= is given and {absent}= is not\n  fix: both, or neither")
        self.environment = environment
        self.can_be_saved = save is not None
        self._save, self._restore = save, restore
        self.steps_per_action = steps_per_action
        self.episodes: list[Episode] = []
        self._encode, self._decode = encode, decode
        # Later episodes reset without a seed, so that the environment goes on drawing from this one.
        self._observation, _ = environment.reset(seed=seed)
        self._reward, self._total, self._num_actions, self._start = 0.0, 0.0, 0, 0
        self._encoded: Mapping[str, Any] | None = None

    def __repr__(self) -> str:
        return f"<ClosedLoop with {type(self.environment).__name__}: {counted(len(self.episodes), 'episode')}>"

    def feed(self, shapes: Mapping[str, Shape], dtype: np.dtype) -> Feed:
        """Return the loop as a feed of inputs with these shapes."""
        return _Fed(self, shapes, dtype)

    def seen(self) -> Mapping[str, Any]:
        """Return the inputs for the current observation; calls `encode` once per observation."""
        if self._encoded is None:
            self._encoded = self._encode(self._observation, self._reward)
        return self._encoded

    def act(self, start: int, outputs: Outputs) -> None:
        """Take one action, given the outputs of the steps from `start` on."""
        observation, reward, ended, cut, _ = self.environment.step(self._decode(outputs))
        self._observation, self._reward = observation, float(reward)
        self._encoded = None
        self._total += self._reward
        self._num_actions += 1
        if ended or cut:
            self.episodes.append(Episode(self._start, self._num_actions, self._total))
            after = start + self.steps_per_action
            self._observation, _ = self.environment.reset()
            self._total, self._num_actions, self._start = 0.0, 0, after

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the state of the loop as arrays; empty if it cannot be saved.

        Raises:
            BrainError: `save` returned something else than arrays, numbers or strings.
        """
        if self._save is None:
            return {}
        ended = np.array([(e.start, e.num_actions) for e in self.episodes], np.int64).reshape(-1, 2)
        arrays = {
            "episodes": ended,
            "rewards": np.array([e.reward for e in self.episodes], np.float64),
            "reward": np.array([self._reward, self._total], np.float64),
            "counts": np.array([self._num_actions, self._start], np.int64),
            # Save the encoded inputs, since an observation may be any object.
            **{f"inputs/{name}": np.asarray(value) for name, value in self.seen().items()},
            **{f"environment/{name}": _saveable(name, value) for name, value in self._save(self.environment).items()},
        }
        return {f"{_LOOP}{name}": value for name, value in arrays.items()}

    def continue_from(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Continue from the arrays of `to_arrays`; other arrays are ignored."""
        own = below(_LOOP, arrays)
        if self._restore is None or not own:
            return
        ended = zip(own["episodes"].tolist(), own["rewards"].tolist(), strict=True)
        self.episodes[:] = [Episode(start, num_actions, reward) for (start, num_actions), reward in ended]
        self._reward, self._total = own["reward"].tolist()
        self._num_actions, self._start = own["counts"].tolist()
        self._encoded = below("inputs/", own)
        self._restore(self.environment, below("environment/", own))


_LOOP = "loop/"


def _saveable(name: str, value: Any) -> np.ndarray:
    array = np.asarray(value)
    if array.dtype.kind not in "biufcSU":
        raise BrainError(
            f"save(environment) returned {name!r} as a {type(value).__name__}, which no file of arrays can hold"
            "\n  fix: arrays, numbers or texts by name; whatever else as a text, json.dumps(...)"
        )
    return array


class _Fed(Feed):
    """A closed loop as a `Feed`."""

    listens = True

    def __init__(self, loop: ClosedLoop, shapes: Mapping[str, Shape], dtype: np.dtype) -> None:
        self._loop, self._shapes, self._dtype = loop, shapes, dtype

    def steps_from(self, start: int, most: int) -> int:
        """Return the number of steps between two actions."""
        return min(self._loop.steps_per_action, most)

    def batch(self, start: int, stop: int) -> Batch:
        """Return the current observation for each of the steps."""
        # As a stimulus, so that what `encode` returns is checked like any other input.
        return Stimulus(self._shapes, self._loop.seen(), self._dtype).batch(0, stop - start)

    def receive(self, start: int, outputs: Outputs) -> None:
        """Act, unless the run ended between two actions."""
        if len(next(iter(outputs.values()))) == self._loop.steps_per_action:
            self._loop.act(start, outputs)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the state of the loop and its environment."""
        return self._loop.to_arrays()

    def continue_from(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Restore the loop and its environment."""
        self._loop.continue_from(arrays)
