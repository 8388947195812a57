"""Settle what rounding hides: the compiled program and one device in float64, where both only mean what they say.

In bfloat16 a step of Adam can move an array no further than rounding does, and then no comparison of rounded numbers
shows a fault. In float64 rounding is a billionth of that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from outlay.analysis.verify.as_compiled.closeness import Results
from outlay.analysis.verify.runs import Leaves
from outlay.analysis.verify.verification import Kind, LeafCheck

ALLOWED = 1e-4
"""The share of an update by which the two may differ: what compilers compute beforehand, they round to float32."""


def can_settle(check: LeafCheck) -> bool:
    """Return whether an array is unknown for its rounding alone."""
    return bool(check.doubt) and not check.fault and check.is_settled_by_others


def wide_floats(tree: Any) -> Any:
    """Return the floats of a tree in float64, except 8-bit floats, whose rounding is part of the program."""

    def one(leaf: Any) -> Any:
        is_narrow = jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.dtype.itemsize > 1
        return leaf.astype(np.float64) if is_narrow else leaf

    return jax.tree.map(one, tree)


def settled(checks: tuple[LeafCheck, ...], got: Results, right: Results, before: Leaves) -> tuple[LeafCheck, ...]:
    """Return the checks, those settled whose array is the same in float64 in the first step.

    An array that differs stays unknown: where a program decides by a number, such as which of two is larger, it may
    decide otherwise.

    Args:
        checks: of all steps.
        got: what the compiled program computed in the first step, in float64.
        right: what one device computed, likewise.
        before: the state before that step.
    """

    def one(check: LeafCheck) -> LeafCheck:
        key = check.kind, check.path
        if not can_settle(check) or key not in got or key not in right:
            return check
        share = _apart(got[key], right[key], before.get(check.path) if check.kind == "state" else None)
        is_same = share is not None and share <= ALLOWED
        return dataclasses.replace(check, doubt="", replayed=share, note="in float64") if is_same else check

    return tuple(map(one, checks))


def scaled(wrong: Collection[tuple[Kind, str]], got: Results, right: Results, before: Leaves) -> str:
    """Say that the wrong update is the right one times one factor; return an empty text if it is not.

    Rounding hides a factor near one, so it is looked for in float64.

    Args:
        wrong: what differs, by kind and path.
        got: what the compiled program computed, in float64.
        right: what one device computed, likewise.
        before: the state before.
    """
    factors = set()
    for key in wrong:
        if key not in got or key not in right or got[key].shape != right[key].shape:
            return ""
        start = before[key[1]].astype(np.float64) if key[0] == "state" and key[1] in before else 0.0
        updates, wants = got[key].astype(np.float64) - start, right[key].astype(np.float64) - start
        large = np.abs(wants) > ALLOWED * np.abs(wants).max(initial=0.0)
        ratios = updates[large] / wants[large]
        if not ratios.size or not np.isfinite(ratios).all() or np.ptp(ratios) > ALLOWED * abs(ratios.mean()):
            return ""
        factors.add(float(f"{ratios.mean():.5g}"))
    if len(factors) != 1 or factors == {1.0}:
        return ""
    return f"scaled: every update that differs is {factors.pop():g} times what it should be, in each entry alike"


def _apart(got: np.ndarray, right: np.ndarray, base: np.ndarray | None) -> float | None:
    """Return how far two arrays are apart, as a share of the update; None if they cannot be compared."""
    if got.shape != right.shape:
        return None
    if not jnp.issubdtype(right.dtype, jnp.inexact):
        return 0.0 if np.array_equal(got, right) else None
    wide, start = right.astype(np.float64), 0.0 if base is None else base.astype(np.float64)
    update, apart = float(np.linalg.norm(wide - start)), float(np.linalg.norm(got.astype(np.float64) - wide))
    if not np.isfinite(apart) or not update:
        return None
    return apart / update
