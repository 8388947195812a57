"""One leaf computed twice: how far apart, in which ratio, and whether that is rounding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from outlay.report.verify.facts import Kind, LeafCheck
from outlay.report.verify.host import by_path
from outlay.report.verify.ratios import name_ratio
from outlay.report.verify.runs import Result
from outlay.report.verify.tolerance import EXACT, tolerance


def compare(
    step: int,
    before: Any,
    got: Result,
    want: Result,
    nudges: Sequence[Result],
    axis_sizes: Mapping[str, int],
    *,
    exact: bool = False,
) -> Iterator[LeafCheck]:
    """Compare what a step gave, leaf by leaf: gradients, then outputs, then the new state.

    Args:
        step: the step's number, from 1.
        before: the state before it.
        got: what the program gave.
        want: what the reference gave.
        nudges: what the reference gives when its inputs are moved by one unit in the last digit, a few times.
        axis_sizes: the mesh's axes.
        exact: whether both compute the same, so that nothing is rounding.
    """
    old = by_path(before)
    found, moved = got.leaves, [nudge.leaves for nudge in nudges]
    for (kind, path), right in want.leaves.items():
        start = old[path] if kind == "state" else np.zeros((), right.dtype)
        values = found[kind, path], right, start
        check = _leaf(step, kind, path, values, None if exact else [leaves[kind, path] for leaves in moved], axis_sizes)
        yield check.also(got.differing.get(path, ""))


def _leaf(
    step: int,
    kind: Kind,
    path: str,
    values: tuple[np.ndarray, np.ndarray, np.ndarray],
    moved: Sequence[np.ndarray] | None,
    axis_sizes: Mapping[str, int],
) -> LeafCheck:
    got, want, start = (_wide(value) for value in values)
    dtype = values[1].dtype
    change = _minus(want, start)
    allowed = EXACT if moved is None else tolerance(dtype, change, want, [_minus(_wide(x), want) for x in moved])
    apart = np.abs(_minus(got, want))
    missing = np.isnan(got) | np.isnan(want)
    bad = np.where(missing, np.isnan(got) != np.isnan(want), (got != want) & ~(apart <= allowed.allowed))
    max_abs = float(apart.max(initial=0.0))
    largest = float(np.abs(change).max(initial=0.0, where=np.isfinite(change)))
    ratio = _ratio(_minus(got, start), change) if jnp.issubdtype(dtype, jnp.number) else None
    return LeafCheck(
        step=step,
        kind=kind,
        path=path,
        dtype=dtype.name,
        max_abs=max_abs,
        max_rel=max_abs / largest if largest else max_abs,
        ratio=ratio,
        allowed=allowed.allowed,
        reason=allowed.reason,
        amplified=allowed.amplified,
        fault=_fault(bad, got, want, ratio, axis_sizes) if bad.any() else "",
    )


def _wide(x: np.ndarray) -> np.ndarray:
    """In the widest type of its kind, so that comparing does not round."""
    return x.astype(np.complex128 if np.iscomplexobj(x) else np.float64)


def _minus(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The difference; nothing where both are the same, infinite ones too, or where a number is missing."""
    with np.errstate(invalid="ignore"):
        return np.where((a == b) | np.isnan(a) | np.isnan(b), 0.0, a - b)


def _ratio(got: np.ndarray, want: np.ndarray) -> float | None:
    finite = np.isfinite(got) & np.isfinite(want)
    norms = [float(np.linalg.norm(x[finite])) for x in (got, want)]
    return norms[0] / norms[1] if norms[1] else None


def _fault(
    bad: np.ndarray, got: np.ndarray, want: np.ndarray, ratio: float | None, axis_sizes: Mapping[str, int]
) -> str:
    num_nan = int((np.isnan(got) & ~np.isnan(want)).sum())
    if num_nan:
        return f"NaN in {num_nan} of {got.size} entries where the other has numbers"
    num_lost = int((~np.isnan(got) & np.isnan(want)).sum())
    if num_lost:
        return f"numbers in {num_lost} of {got.size} entries where the other has NaN"
    return name_ratio(ratio, axis_sizes) or f"differs in {int(bad.sum())} of {bad.size} entries"
