"""What counts as the same: rounding by dtype, rounding that the step multiplies, and nothing else."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from outlay.analysis.verify.batches import results_of_perturbed
from outlay.analysis.verify.compare import Pair, Standard, compare
from outlay.analysis.verify.dependence import FLOAT
from outlay.analysis.verify.runs import Result
from outlay.analysis.verify.verification import LeafCheck

START = np.array([1.0, 2.0, -3.0, 4.0], np.float32)


def checked(got: Any, want: Any, *, nudges: Any = (), before: Any = START, precise: Any = None) -> LeafCheck:
    """The check of one leaf of the state; `precise` is what both gave in float64."""
    (result, right), moved = (results(got, want)), results(*nudges)
    both = None if precise is None else Pair(*results(*precise))
    floats = np.asarray(want).dtype if jnp.issubdtype(np.asarray(want).dtype, jnp.inexact) else np.float32
    standard = Standard(coarsest=floats)
    pair = Pair(result, right, lambda: moved)
    (check,) = compare(1, {"w": np.asarray(before)}, pair, both, {"data": 8}, standard)
    return check


def results(*values: Any) -> list[Result]:
    return [Result({"w": np.asarray(x)}, {}, {}) for x in values]


@pytest.mark.parametrize(
    ("dtype", "same", "other"),
    [(np.float64, 1e-11, 1e-9), (np.float32, 5e-6, 2e-4), (np.float16, 5e-3, 1e-1), (jnp.bfloat16, 4e-2, 0.5)],
)
def test_the_tolerance_follows_the_dtype(dtype: Any, same: float, other: float) -> None:
    want = (np.ones(4) * 2).astype(dtype)
    assert checked((want.astype(np.float64) * (1 + same)).astype(dtype), want, before=np.zeros(4, dtype)).ok
    assert not checked((want.astype(np.float64) * (1 + other)).astype(dtype), want, before=np.zeros(4, dtype)).ok


def test_a_wrong_update_shows_though_it_is_small_beside_the_value() -> None:
    check = checked(START + np.float32(8e-5), START + np.float32(1e-5))
    assert check.fault.startswith("8.0x")
    assert check.max_abs / np.abs(START).max() < 2e-5
    assert check.max_rel == pytest.approx(7, rel=0.05)


def test_rounding_of_the_value_that_is_updated_is_no_fault() -> None:
    want = START + np.float32(1e-6)
    got, meant = np.nextafter(want, np.float32(9)), START.astype(np.float64) + 1e-6
    assert checked(got, want, precise=(meant, meant)).ok
    assert checked(got, want).verdict == "unknown"  # without float64 an update of eight times as much would pass too


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.bool_])
def test_integers_and_booleans_are_exact(dtype: Any) -> None:
    want = np.array([1, 0, 1], dtype)
    assert checked(want, want, before=want).ok
    off = checked(np.array([1, 0, 0], dtype), want, before=np.zeros(3, dtype))
    assert off.fault == "differs in 1 of 3 entries"
    assert off.allowed == 0
    assert off.reason.startswith("exact")


def test_nan_and_infinity_at_the_same_places_are_the_same_and_elsewhere_are_not() -> None:
    nan, inf = (np.array([1.0, 2.0, -3.0, x], np.float32) for x in (np.nan, np.inf))
    assert checked(nan.copy(), nan).verdict == "unknown"
    assert checked(nan.copy(), nan).doubt.startswith("NaN in 1 of 4 entries on both sides")
    assert checked(nan.copy(), nan, before=nan).ok  # it was NaN before, and the step left it
    assert checked(START, nan).fault == "numbers in 1 of 4 entries where the other has NaN"
    assert checked(nan, START).fault == "NaN in 1 of 4 entries where the other has numbers"
    assert checked(inf.copy(), inf).doubt.startswith("infinite in 1 of 4 entries")
    assert checked(inf.copy(), inf).max_abs == 0
    assert not checked(-inf, inf).ok
    assert not checked(START, inf).ok


@pytest.mark.parametrize(
    ("got", "right", "max_abs", "words"),
    [
        (np.inf, 4.0, "inf", "infinite in 1 of 4 entries where the other has numbers"),
        (-np.inf, np.inf, "inf", "differs in 1 of 4 entries"),
        (4.0, np.inf, "inf", "numbers in 1 of 4 entries where the other is infinite"),
        (np.nan, 4.0, "nan", "NaN in 1 of 4 entries where the other has numbers"),
        (4.0, np.nan, "nan", "numbers in 1 of 4 entries where the other has NaN"),
        (np.nan, np.inf, "nan", "NaN in 1 of 4 entries where the other has numbers"),
    ],
)
def test_what_is_no_number_on_one_side_shows_in_every_column(
    got: float, right: float, max_abs: str, words: str
) -> None:
    there, here = (np.array([1.0, 2.0, -3.0, x], np.float32) for x in (got, right))
    for precise in (None, (there, here)):
        check = checked(there, here, precise=precise)
        assert (f"{check.max_abs:.1e}", f"{check.max_rel:.1e}") == (max_abs, max_abs)
        assert check.fault.startswith(words)
        assert check.ratio is None or np.isinf([got, right]).all()
        assert precise is None or f"{check.replayed:.1e}" == max_abs


def test_an_update_that_is_lost_is_named() -> None:
    assert checked(START, START + 1).fault == "0.0x: dropped"


def test_a_change_where_there_should_be_none_is_found_without_a_ratio() -> None:
    check = checked(START + 1, START)
    assert (check.ok, check.ratio) == (False, None)


def test_complex_and_empty_leaves_are_compared() -> None:
    want = np.array([1 + 2j], np.complex64)
    assert checked(want, want, before=want).ok
    assert not checked(want.conj(), want, before=0 * want).ok
    assert checked(np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32), before=np.zeros((0, 3), np.float32)).ok


def test_what_rounding_of_the_inputs_moves_as_far_proves_nothing() -> None:
    want, got = START + np.float32(0.1), START - np.float32(0.1)
    assert checked(got, want).verdict == "different"
    check = checked(got, want, nudges=[want, got])
    assert check.verdict == "unknown"
    assert "hides a fault as large as what the step does" in check.doubt
    assert "rounding of the step's inputs alone moves it by 2.0e-01" in check.reason


def test_inputs_are_moved_no_more_often_than_it_takes_to_show_that_a_difference_is_rounding() -> None:
    moved: list[Any] = []

    def run(state: Any, batch: Any) -> Result:
        moved.append(state["w"])
        return Result({"w": np.array([1.01, 2.0], np.float32)}, {}, {})

    state = {"w": np.zeros(2, np.float32)}
    others = results_of_perturbed(run, {"w": np.ones(2, np.float32)}, np.ones(2, np.float32), num=4)
    got, right = ({"w": np.array([x, 2.0], np.float32)} for x in (1.001, 1.0))
    pair = Pair(Result(got, {}, {}), Result(right, {}, {}), others)
    assert [check.verdict for check in compare(1, state, pair, None, {}, Standard())] == ["same"]
    assert len(moved) == 1
    assert len([*others()]) == len([*others()]) == len(moved) == 4
    assert all(np.all(one != 1) for one in moved)


def test_an_update_below_the_dtype_is_seen_in_float64() -> None:
    """Both sides round to the same bits, and one of them means an update eight times as large."""
    start = START.astype(np.float64)
    check = checked(START, START, precise=(start + 8e-12, start + 1e-12))
    assert check.fault == "8.0x: summed where a mean was meant, or summed twice (over data)"
    assert checked(START, START, precise=(start + 1e-12, start + 1e-12)).ok


def test_the_side_that_rounds_worse_is_judged_by_float64() -> None:
    truth = START.astype(np.float64) + 0.5
    near, off = truth.astype(np.float32), (truth * 1.1).astype(np.float32)
    assert checked(near, off, precise=(truth, truth)).ok
    assert checked(off, near, precise=(truth, truth)).verdict == "different"
    assert "one device itself is off by" in checked(near, off, precise=(truth, truth)).reason


def test_what_cancels_may_be_rounded_worse_by_the_program_and_is_nothing_else() -> None:
    def of(got: float, right: float, *nudges: float, meant: float = 1e-12) -> LeafCheck:
        nudged, start = [np.float32([x]) for x in nudges], np.zeros(1, np.float32)
        precise = (np.array([meant]), np.array([meant]))
        return checked(np.float32([got]), np.float32([right]), before=start, nudges=nudged, precise=precise)

    assert of(3e-3, 6e-5).ok
    assert of(3e-3, 0, 4e-6).ok
    assert of(1, 6e-5).verdict == "different"
    assert of(1, 0).verdict == "different"


def test_one_huge_column_hides_no_other() -> None:
    start = np.zeros((3, 4))
    right = np.array([[1e12, 1, 1, 1]] * 3)
    wrong = right * np.array([1, 8, 8, 8])
    narrow = start.astype(np.float32)
    check = checked(right.astype(np.float32), right.astype(np.float32), before=narrow, precise=(wrong, right))
    assert check.fault == "8.0x: summed where a mean was meant, or summed twice (over data), in 9 of 12 entries"


def test_whole_numbers_that_rounding_decides_are_no_fault_if_float64_agrees() -> None:
    counts = np.array([3, 4], np.int32)
    other = np.array([4, 3], np.int32)
    assert checked(counts, other, before=counts, precise=(counts, counts)).verdict == "different"
    pair, both = Pair(*results(counts, other)), Pair(*results(counts, counts))
    standard = Standard(marks={("state", "w"): frozenset({FLOAT})})
    (check,) = compare(1, {"w": counts}, pair, both, {"data": 8}, standard)
    assert check.ok
    assert "in float64 none" in check.note
