"""What counts as the same: rounding by dtype, rounding that the step multiplies, and nothing else."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from outlay.report.verify.compare import compare
from outlay.report.verify.facts import LeafCheck
from outlay.report.verify.runs import Result

START = np.array([1.0, 2.0, -3.0, 4.0], np.float32)


def checked(got: Any, want: Any, *, nudges: Any = (), before: Any = START) -> LeafCheck:
    """The check of one leaf of the state."""
    found, right, *moved = (Result({"w": np.asarray(x)}, {}, {}) for x in (got, want, *nudges))
    (check,) = compare(1, {"w": np.asarray(before)}, found, right, moved, {"data": 8})
    return check


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
    assert checked(np.nextafter(want, np.float32(9)), want).ok


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
    assert checked(nan.copy(), nan).ok
    assert checked(START, nan).fault == "numbers in 1 of 4 entries where the other has NaN"
    assert checked(nan, START).fault == "NaN in 1 of 4 entries where the other has numbers"
    assert checked(inf.copy(), inf).ok
    assert checked(inf.copy(), inf).max_abs == 0
    assert not checked(-inf, inf).ok
    assert not checked(START, inf).ok


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


def test_what_rounding_of_the_inputs_moves_as_far_is_allowed_and_said() -> None:
    want, got = START + np.float32(0.1), START - np.float32(0.1)
    assert not checked(got, want).ok
    check = checked(got, want, nudges=[want, got])
    assert check.ok
    assert check.amplified
    assert "rounding of the step's inputs alone moves it by 2.0e-01" in check.reason
