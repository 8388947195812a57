"""What a step is expected to take, against sums done by hand."""

import pytest
from tests.unit.search.placement.costs import ring

from outlay.search.placement.costs import Read, expect_by_rows, expect_copies, expect_placed

APART = {"a": 0, "b": 1, "c": 2}


def test_the_busiest_place_sets_the_pace():
    assert expect_placed(ring(), APART).work == 3
    assert expect_placed(ring(), {"a": 0, "b": 1, "c": 0}).work == 4


def test_exchange_is_counted_by_place_and_by_transfer():
    costs = expect_placed(ring(per_group=0.1, per_transfer=0.01, bandwidth=1000.0), APART)
    # a to b, a to c, b to c, c to a
    assert costs.num_bytes == 211
    assert costs.exchange == pytest.approx(3 * 0.1 + 4 * 0.01 + 0.211)


def test_what_two_parts_of_a_place_read_is_sent_once():
    costs = expect_placed(ring(per_transfer=1.0), {"a": 0, "b": 1, "c": 1})
    assert costs.num_bytes == 101
    assert costs.exchange == 2


def test_one_place_exchanges_nothing():
    costs = expect_placed(ring(per_group=1.0, per_transfer=1.0), dict.fromkeys("abc", 4))
    assert (costs.work, costs.exchange, costs.num_bytes) == (6, 0, 0)


def test_later_reading_makes_exchanges_rarer():
    later = ring(reads=(Read("a", "out", "b", 8, 4), Read("b", "out", "a", 8, 6)), per_group=1.0)
    assert expect_placed(later, {"a": 0, "b": 1, "c": 1}).exchange == pytest.approx(2 / 4)


def test_shared_cores_do_the_work_of_all():
    assert expect_placed(ring(num_cores=1), APART).work == 6
    assert expect_placed(ring(num_cores=2), {"a": 0, "b": 1, "c": 1}).work == 3
    assert expect_copies(ring(num_cores=2), 6).work == 18
    assert expect_copies(ring(), 6).work == 6


def test_by_rows_the_fullest_device_counts():
    # Of 5 rows 3 on one of two devices, of 4 two; c is computed by both.
    costs = expect_by_rows(ring(), 2)
    assert costs.work == pytest.approx(3 * 3 / 5 + 2 / 2 + 1)
    assert costs.exchange == 0.25
    assert costs.num_bytes == 110
    assert expect_by_rows(ring(num_cores=1), 2).work == pytest.approx(2 * 3.8)


def test_bound():
    assert ring().largest == "a"
    assert ring().best_gain == 2
    assert ring(seconds={"a": 0.0}).best_gain == 1
