"""Compare one leaf computed twice: how far apart, in which ratio, and whether that is rounding.

There are two questions. Do both *mean* the same? That is asked in float64, where an update too small for the leaf's own
dtype still shows. And does the program compute what it means as well as its dtypes allow? The replay in float64 is the
judge of that, so that a program is not blamed for a reference that rounds worse.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np

from outlay.analysis.verify.dependence import BATCH, FLOAT, Marks
from outlay.analysis.verify.host import near
from outlay.analysis.verify.ratio_names import name_ratio
from outlay.analysis.verify.runs import Result
from outlay.analysis.verify.verification import Kind, LeafCheck

SHARE = {"float64": 1e-10, "float32": 1e-5, "float16": 1e-2, "bfloat16": 5e-2}
"""The share of the largest entry by which sums in another order may differ."""
_DIGITS = 8
_DIGITS_OF_NOISE = 1000  # sums that cancel leave only rounding, which depends on the order and may be small by luck
_PRECISE_SHARE = 1e-6  # constants that a step derives from the number of devices are rounded to its own dtypes
_PRECISE_EPS = float(np.finfo(np.float64).eps)
_MOVED_BY_ROUNDING = 0.01
_ZERO_BUT_FOR_ROUNDING = 1e-5
_ZERO_IN_FLOAT64 = 1e-12


@dataclass(frozen=True)
class Pair:
    """What the program and the reference computed from the same numbers, in the same dtypes.

    Attributes:
        got: by the program.
        right: by the reference.
        perturbed: returns what the reference computes when its inputs move by one unit in their last digit, a few
            times, each when it is asked for: only if the two differ by more than sums in another order would.
    """

    got: Result
    right: Result
    perturbed: Callable[[], Iterable[Result]] = field(default=lambda: ())


@dataclass(frozen=True)
class Standard:
    """What counts as the same.

    Attributes:
        exact: whether both must compute the same bits, so that nothing is rounding.
        share: of the largest entry or update, by how much both may differ; None for a share that follows the dtypes.
        coarsest: the coarsest dtype that the step computes in.
        rounded: operations that a replay in float64 left in their own dtypes.
        in_fp8: whether the program multiplies in 8 bits, and the reference does not.
        marks: what each leaf depends on, by kind and path.
    """

    exact: bool = False
    share: float | None = None
    coarsest: Any = np.float32
    rounded: frozenset[str] = frozenset()
    in_fp8: bool = False
    marks: Mapping[tuple[Kind, str], Marks] = field(default_factory=dict)


_ORDER: tuple[Kind, ...] = ("gradient", "output", "state")


def compare(
    step: int,
    before: Mapping[str, np.ndarray],
    own: Pair,
    precise: Pair | None,
    axis_sizes: Mapping[str, int],
    standard: Standard,
) -> Iterator[LeafCheck]:
    """Compare what a step gave, leaf by leaf: gradients, then outputs, then the new state.

    Args:
        step: the step's number, from 1.
        before: the state before it, by path.
        own: the results of both in their own dtypes.
        precise: the results of both in float64, if they could be replayed.
        axis_sizes: the mesh's axes.
        standard: what counts as the same.
    """
    # Gradients are only known of replays: a program returns none.
    known = {**(precise.got.leaves if precise is not None else {}), **own.got.leaves}
    right = {**(precise.right.leaves if precise is not None else {}), **own.right.leaves}
    for key in sorted(known, key=lambda key: _ORDER.index(key[0])):
        if key not in right:
            if key[0] != "gradient":
                yield _one_sided(step, *key, known[key], "one device computes no such array")
            continue
        pair = own if key in own.got.leaves and key in own.right.leaves else precise
        if pair is not None:
            leaf = _Leaf(step, *key, before, pair, precise, axis_sizes, standard)
            yield leaf.check().also(own.got.differing.get(key[1], ""))
    for key, leaf in right.items():
        if key[0] == "output" and key not in known:
            yield _one_sided(step, *key, leaf, "the program computes no such array")


def _one_sided(step: int, kind: Kind, path: str, leaf: np.ndarray, fault: str) -> LeafCheck:
    """Return the check of an array that only one side has."""
    return LeafCheck(step, kind, path, leaf.dtype.name, math.nan, math.nan, None, 0.0, "one-sided", fault=fault)


@dataclass
class _Leaf:
    step: int
    kind: Kind
    path: str
    old: Mapping[str, np.ndarray]
    own: Pair
    precise: Pair | None
    axis_sizes: Mapping[str, int]
    standard: Standard

    def __post_init__(self) -> None:
        self.key = (self.kind, self.path)
        self.dtype = self.own.right.leaves[self.key].dtype
        self.got, self.right = (_widest(result.leaves[self.key]) for result in (self.own.got, self.own.right))
        start = self.old[self.path] if self.kind == "state" else np.zeros((), self.dtype)
        self.start = _widest(start)
        self.is_float = jnp.issubdtype(self.dtype, jnp.inexact)
        self.marks = self.standard.marks.get(self.key, frozenset())
        self.note = ""

    def check(self) -> LeafCheck:
        """Return the check of the leaf."""
        got, right, start = self.got, self.right, self.start
        change = _minus(right, start)
        replayed, fault, blind, not_finite = None, "", "", self._not_finite()
        ratio = _ratio(got, right, start) if jnp.issubdtype(self.dtype, jnp.number) else None
        moved = bool(np.any(change)) or not np.isfinite(right).all()
        if self.precise is not None:
            there, here = (_widest(result.leaves[self.key]) for result in (self.precise.got, self.precise.right))
            meant = _minus(here, start)
            replayed = _share_of(_difference(there, here), meant)
            if jnp.issubdtype(self.dtype, jnp.number):
                ratio = _ratio(there, here, start)
            moved = moved or bool(np.any(meant))
            fault, blind = self._in_meaning(there, here, meant, ratio)
        allowed, reason, own_fault, own_doubt = self._in_own_dtype(change, ratio, meant=not fault)
        max_abs = _difference(got, right)
        return LeafCheck(
            step=self.step,
            kind=self.kind,
            path=self.path,
            dtype=self.dtype.name,
            max_abs=max_abs,
            max_rel=_share_of(max_abs, change),
            ratio=ratio,
            allowed=allowed,
            reason=reason,
            replayed=replayed,
            moved=moved,
            reads_batch=BATCH in self.marks,
            fault=fault or own_fault,
            doubt=not_finite or blind or own_doubt,
            is_settled_by_others=bool(blind) and not not_finite,
            note=self.note,
        )

    def _in_meaning(self, there: Any, here: Any, meant: Any, ratio: float | None) -> tuple[str, str]:
        """Return what is wrong in float64, or why float64 cannot tell."""
        if not self.is_float:
            bad = there != here
            if not bad.any():
                return "", ""
            unsteady = [_widest(other.leaves[self.key]) != here for other in self._perturbed(self.precise)]
            if not (bad & ~np.any(unsteady, axis=0)).any() if unsteady else False:
                return (
                    "",
                    f"rounding alone changes {int(bad.sum())} of {bad.size} entries: they count or rank equal values",
                )
            return self._words(bad, there, here, ratio), ""
        value = np.maximum(np.abs(_finite(here)), np.abs(_finite(self.start)))
        share, eps = _PRECISE_SHARE, _PRECISE_EPS
        if self.standard.rounded:
            share = SHARE.get(np.dtype(self.standard.coarsest).name, 0.1)
            eps = _eps(self.standard.coarsest)
        share = share if self.standard.share is None else self.standard.share
        sizes = np.abs(_finite(meant))
        allowed = share * near(sizes) + 256 * eps * _largest(meant) + 64 * eps * value
        bad = _apart(there, here, allowed)
        if bad.any():
            moves = [np.abs(_minus(_widest(other.leaves[self.key]), here)) for other in self._perturbed(self.precise)]
            moved = np.max([_finite(move) for move in moves], axis=0) if moves else np.zeros_like(value)
            everywhere = _largest(moved) > _MOVED_BY_ROUNDING * _largest(meant)
            allowed = allowed + 32 * (np.full_like(value, _largest(moved)) if everywhere else near(moved))
            bad = _apart(there, here, allowed)
        if bad.any():
            return self._words(bad, there, here, ratio), ""
        # If a value is more than twice what is allowed, losing half of it would be seen.
        if not np.any(meant) or (sizes > 2 * allowed).any():
            return "", ""
        # A value that is zero up to rounding need not be so in float64, where it is smaller still, unless a step of
        # fixed size is made from it.
        in_own = _largest(_minus(self.right, self.start))
        is_zero = not in_own or _largest(meant) < _ZERO_BUT_FOR_ROUNDING * in_own
        if is_zero or (self.kind == "gradient" and self._is_zero_among_others(meant)):
            self.note = "zero up to rounding"
            return "", ""
        return "", (
            f"rounding alone moves it by as much as the step does ({_largest(meant):.1e}), so a fault would not show: "
            "give batches or a state (key=) from which it moves, or take it out of the step"
        )

    def _is_zero_among_others(self, meant: Any) -> bool:
        """Return whether a gradient is nothing beside the others, as that of an attention's key bias always is.

        A gradient is only known of the replay. A step that is made from its rounding shows in the state.
        """
        results = self.precise.right.leaves if self.precise is not None and not self.standard.rounded else {}
        largest = max((_largest(_widest(leaf)) for (kind, _), leaf in results.items() if kind == "gradient"), default=0)
        return _largest(meant) < _ZERO_IN_FLOAT64 * largest

    def _in_own_dtype(self, change: Any, ratio: float | None, *, meant: bool) -> tuple[float, str, str, str]:
        """Return the largest difference that is rounding, why, what is wrong beyond it, and why nothing is known."""
        if self.standard.exact or not self.is_float:
            reason, fault = self._exactly(ratio, meant=meant)
            return 0.0, reason, fault, ""
        got, right = self.got, self.right
        share, reason = self._share()
        largest = _largest(change)
        allowed = share * largest + _DIGITS * _eps(self.dtype) * _largest(right) / 2
        judge, digits = right, _DIGITS
        if self.precise is not None:
            judge = _widest(self.precise.right.leaves[self.key])
            judge = np.where(np.isfinite(judge), judge, right)
            off = _largest(_minus(right, judge))
            if off > share * largest:
                reason += f"; one device itself is off by {off:.1e}"
            if _largest(_minus(judge, self.start)) < _ZERO_BUT_FOR_ROUNDING * _largest(_minus(got, self.start)):
                digits = _DIGITS_OF_NOISE
            allowed += digits * off
        if self.standard.in_fp8 and self.precise is not None:
            from outlay.analysis.verify.fp8_rounding import within_fp8

            moved = (_minus(_widest(other.leaves[self.key]), right) for other in self._perturbed(self.own))
            is_within, in_fp8, reason = within_fp8(got, judge, self.start, allowed, moved)
            fault = "" if is_within or not meant else self._words(got != judge, got, judge, ratio)
            return allowed + in_fp8, reason, fault, ""
        doubt = ""
        bad = _apart(got, judge, allowed)
        if bad.any():
            moved, without = 0.0, allowed
            for other in self._perturbed(self.own):
                moved = max(moved, _largest(_minus(_widest(other.leaves[self.key]), right)))
                allowed = without + digits * moved
                bad = _apart(got, judge, allowed)
                if not bad.any():  # another one could only allow more
                    break
            if moved > _MOVED_BY_ROUNDING * largest:
                reason += f"; rounding of the step's inputs alone moves it by {moved:.1e}"
        if self.precise is None and not bad.any() and np.any(change) and allowed >= largest:
            doubt = f"rounding alone ({allowed:.1e}) hides a fault as large as what the step does ({largest:.1e})"
        if not bad.any() or not meant:
            return allowed, reason, "", doubt
        return allowed, reason, self._words(bad, got, judge, ratio), doubt

    def _exactly(self, ratio: float | None, *, meant: bool) -> tuple[str, str]:
        """Return why nothing is allowed to differ, and what does."""
        got, right = self.got, self.right
        reason = "exact: each part rounds the same wherever it runs"
        if not self.is_float:
            reason = "exact: integers, booleans and keys do not round"
        bad = (got != right) & ~(np.isnan(got) & np.isnan(right))
        if not bad.any() or not meant:
            return reason, ""
        if self.precise is not None and FLOAT in self.marks:
            self.note = f"{int(bad.sum())} of {bad.size} entries differ, and in float64 none: rounding decides them"
            return reason, ""
        return reason, self._words(bad, got, right, ratio)

    def _share(self) -> tuple[float, str]:
        """Return the share of the largest entry that sums in another order may differ by, and why."""
        if self.standard.share is not None:
            return self.standard.share, f"the tolerance given, {self.standard.share:g} of the largest entry"
        # If both round alike, `max` returns the first, the step's dtype: `SHARE` has float32 but not complex64.
        coarse = np.dtype(max(self.standard.coarsest, self.dtype, key=_eps)).name
        share = SHARE.get(coarse, _DIGITS * _eps(coarse))
        return share, f"{coarse}: sums in another order round differently, {share:g} of the largest entry"

    def _perturbed(self, pair: Pair | None) -> Iterable[Result]:
        return pair.perturbed() if pair is not None else ()

    def _not_finite(self) -> str:
        """Say why nothing is known where neither side has a number."""
        if not self.is_float:
            return ""
        both = ~np.isfinite(self.got) & ~np.isfinite(self.right)
        both &= ~((self.right == self.start) | (np.isnan(self.right) & np.isnan(self.start)))
        if not both.any():
            return ""
        what = "NaN" if np.isnan(self.right[both]).any() else "infinite"
        return f"{what} in {int(both.sum())} of {both.size} entries on both sides, where any fault would hide"

    def _words(self, bad: np.ndarray, got: np.ndarray, right: np.ndarray, ratio: float | None) -> str:
        num_nan = int((np.isnan(got) & ~np.isnan(right)).sum())
        if num_nan:
            return f"NaN in {num_nan} of {got.size} entries where the other has numbers"
        num_lost = int((~np.isnan(got) & np.isnan(right)).sum())
        if num_lost:
            return f"numbers in {num_lost} of {got.size} entries where the other has NaN"
        num_infinite = int((np.isinf(got) & np.isfinite(right)).sum())
        if num_infinite:
            return f"infinite in {num_infinite} of {got.size} entries where the other has numbers"
        num_finite = int((np.isfinite(got) & np.isinf(right)).sum())
        if num_finite:
            return f"numbers in {num_finite} of {got.size} entries where the other is infinite"
        start = np.broadcast_to(self.start, got.shape)
        changes = _minus(got, start)[bad], _minus(right, start)[bad]
        factor = ratio if np.all(bad) else _ratio(*changes)
        named = name_ratio(factor, self.axis_sizes) if _is_factor(factor, *changes) else ""
        where = f"in {int(bad.sum())} of {bad.size} entries"
        if not named or (bad.sum() == 1 < bad.size):
            return f"differs {where}"
        return named if np.all(bad) else f"{named}, {where}"


def _is_factor(factor: float | None, got: np.ndarray, right: np.ndarray) -> bool:
    """Return whether one is the other times a factor, entry by entry; a sign alone does not count."""
    if factor is None:
        return False
    return bool(
        np.all(np.abs(np.abs(got) - factor * np.abs(right)) <= 0.05 * np.abs(factor * right).max(initial=1e-300))
    )


@functools.cache
def _eps(dtype: Any) -> float:
    return float(jnp.finfo(dtype).eps)


def _widest(x: np.ndarray) -> np.ndarray:
    """Convert to the widest dtype of its kind, so that the comparison does not round."""
    return x.astype(np.complex128 if np.iscomplexobj(x) else np.float64)


def _minus(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the difference; zero where both are equal, even if infinite, or where a number is missing."""
    with np.errstate(invalid="ignore"):
        difference = a - b
        if not np.isnan(difference).any():  # so it is nearly always, and this is asked of every array many times
            return difference
        return np.where((a == b) | np.isnan(a) | np.isnan(b), 0.0, difference)


def _apart(got: np.ndarray, right: np.ndarray, allowed: Any) -> np.ndarray:
    """Return which entries are further apart than allowed, or are numbers on one side only."""
    missing = np.isnan(got) | np.isnan(right)
    far = (got != right) & ~(np.abs(_minus(got, right)) <= allowed)
    return np.where(missing, np.isnan(got) != np.isnan(right), far)


def _finite(x: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(x), x, 0.0)


def _largest(x: Any) -> float:
    return float(np.abs(_finite(np.asarray(x))).max(initial=0.0))


def _share_of(difference: float, change: np.ndarray) -> float:
    largest = _largest(change)
    return difference / largest if largest else difference


def _difference(got: np.ndarray, right: np.ndarray) -> float:
    """Return the largest difference of an entry; infinite if one is, NaN if one has no number and the other has."""
    if (np.isnan(got) != np.isnan(right)).any():
        return math.nan
    return float(np.abs(_minus(got, right)).max(initial=0.0))


def _ratio(got: np.ndarray, right: np.ndarray, start: Any = 0.0) -> float | None:
    """Return the norm of one change over that of the other; None where one has no numbers and the other has."""
    finite = np.isfinite(got)
    if (finite != np.isfinite(right)).any():
        return None
    there, here = (_norm(_minus(x, start)[finite]) for x in (got, right))
    return there / here if here else None


def _norm(x: np.ndarray) -> float:
    """Return the norm; without BLAS, as in `np.linalg.norm`, whose threads take more time to start than to add."""
    with np.errstate(over="ignore"):
        return math.sqrt(np.square(np.abs(x)).sum())
