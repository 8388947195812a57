"""Compare a program with one device in their own dtypes alone, where float64 could show nothing more.

A replay in float64 answers whether both *mean* the same. If both are traced to the same operations, they do. What is
left is how each is compiled: that shows in their own dtypes, as long as rounding is small beside what an array changes
by.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from outlay.analysis.verify.host import is_finite
from outlay.analysis.verify.runs import Leaves, Result, Run
from outlay.analysis.verify.verification import LeafCheck

Numbered = tuple[int, Any]
"""The number of a step, and its batch on the host."""


class OwnDtypes:
    """Compares steps, and knows for which arrays they would have shown a fault.

    Args:
        run_reference: takes a step on one device.
        run: takes a step of the program.
        compared: compares what both gave: `compared(number, state, batch, got, right)`.
    """

    def __init__(
        self, run_reference: Run, run: Run, compared: Callable[[int, Leaves, Any, Result, Result], list[LeafCheck]]
    ) -> None:
        self._run_reference, self._run, self._compared = run_reference, run, compared
        self._shown: set[tuple[str, str]] = set()
        self._open: set[tuple[str, str]] = set()
        self.checks: list[LeafCheck] = []
        self.further: list[LeafCheck] = []
        self.num_further = 0
        self._state: Leaves = {}

    def compare_steps(self, state: Leaves, batches: Sequence[Numbered], *, donate: bool) -> bool:
        """Take steps on both sides; return whether nothing differs."""
        self._state = state
        for number, batch in batches:
            checks = self._step(number, batch, donate=donate)
            if checks is None:
                return False
            self.checks += checks
        return True

    def compare_further(
        self, batches: Sequence[Numbered], last: Sequence[Numbered], other_state: Callable[[], Leaves], *, donate: bool
    ) -> bool:
        """Take further steps, the last from another state; return whether nothing differs and every array has shown."""
        for number, batch in [*batches, *last]:
            if last and number == last[0][0]:
                self._state = other_state()
            checks = self._step(number, batch, donate=donate, may_be_skipped=True)
            if checks is None:
                return False
            self.further += checks
            self.num_further += bool(checks)
        return not self._open - self._shown

    def _step(self, number: int, batch: Any, *, donate: bool, may_be_skipped: bool = False) -> list[LeafCheck] | None:
        """Return the checks of a step, none if it gave no numbers, and None if something differs or is not known."""
        state = self._state
        right = self._run_reference(state, batch)
        if not is_finite(right.leaves, state):
            return [] if may_be_skipped else None
        got = self._run(state, batch)
        checks = self._compared(number, state, batch, got, right)
        self._state = right.state if donate else state
        if any(check.fault for check in checks):
            return None
        for check in checks:
            self._record(check, state, right)
        # What rounding hides in this step is asked of the others.
        return [check if check.ok else dataclasses.replace(check, doubt="") for check in checks]

    def _record(self, check: LeafCheck, state: Leaves, right: Result) -> None:
        key = (check.kind, check.path)
        leaf = right.leaves[key]
        if key in self._shown or not jnp.issubdtype(leaf.dtype, jnp.inexact):
            return
        start = state[check.path] if check.kind == "state" else np.zeros((), leaf.dtype)
        change = float(np.abs(leaf.astype(np.complex128) - start.astype(np.complex128)).max(initial=0.0))
        # Losing half of it would be seen.
        if change > 2 * check.allowed:
            self._shown.add(key)
        if change or check.reads_batch:
            self._open.add(key)
