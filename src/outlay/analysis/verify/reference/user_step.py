"""A user's step and init as functions of flat lists, for one device: what `jax.jit` is given instead of a program."""

from __future__ import annotations

from typing import Any

import jax

from outlay.analysis.verify.reference.plain_loop import PlainLoop
from outlay.analysis.verify.reference.take_apart import Apart, take_apart
from outlay.core.as_written import AsWritten, LossAsWritten, current_judge
from outlay.core.context_values import within
from outlay.core.flat_nodes import users_nodes
from outlay.core.paths import flatten_paths, under

Places = list[tuple[str, int]]
"""Paths, and which entry of a list stands there."""


class UserStep:
    """A step as its user wrote it.

    Args:
        written: step and init.
        only_reads: whether the step returns its outputs alone.
        loop: what a loss and an optimizer mean, where the step is from `outlay.train_step`.

    Attributes:
        state: the state that `init` made, taken apart.
        places: where the results of the step that was traced last stand: the new state's, the outputs', the gradients'.
        losses: the losses and optimizers that this step took, as they were written.
    """

    def __init__(self, written: AsWritten, loop: PlainLoop, *, only_reads: bool) -> None:
        self._written, self._loop, self._only_reads = written, loop, only_reads
        self.state: Apart = take_apart(None)
        self.places: tuple[Places, Places, Places] = ([], [], [])
        self.losses: list[LossAsWritten] = []

    def init(self, key: Any) -> list[Any]:
        """Return the arrays of the state before the first step."""
        with within(current_judge, self._loop):
            made = self._written.init(key)
        names = self._written.parts
        self.state = take_apart(dict(zip(names, made, strict=True)) if names else made)
        return self.state.leaves

    def step(self, leaves: list[Any], batch: Any) -> tuple[list[Any], list[Any], list[Any]]:
        """Return the arrays of the new state, of the outputs, and the gradients."""
        names, before, batch = self._written.parts, self.state.rebuilt(leaves), users_nodes(batch)
        loop = self._loop
        loop.gradients, loop.losses = [], []
        with within(current_judge, loop):
            result = self._written.step(*([before[name] for name in names] if names else [before]), batch)
        after: Any = None
        if self._only_reads:
            outputs = result
        elif names:
            *new, outputs = result
            after = dict(zip(names, new, strict=True))
        else:
            after, outputs = result
        grads = {"grads": loop.gradients[0] if len(loop.gradients) == 1 else loop.gradients} if loop.gradients else {}
        self.losses = loop.losses
        state, shown = take_apart(after), take_apart(outputs)
        self.places = (
            state.places,
            [(under("outputs", path), number) for path, number in shown.places],
            [(path, number) for number, (path, _) in enumerate(flatten_paths(grads)[0])],
        )
        return state.leaves, shown.leaves, jax.tree.leaves(grads)
