import copy
import tomllib

import pytest

from outlay.devices.measured import CollectiveCost, Measured, is_measured

MEASURED = Measured(
    num_devices=8,
    seconds_per_step=1e-3,
    seconds_per_operation=0.0,
    across_rows={256: 1e9, 4096: 1e8},
    collectives={"all-reduce": {2: CollectiveCost(1e-4, 1e9), 8: CollectiveCost(3e-4, 5e8)}},
)


def test_a_table_reads_back_as_what_it_was():
    assert Measured.from_table(MEASURED.to_table()) == MEASURED
    assert is_measured(MEASURED.to_table())


def test_between_what_was_measured_the_line_over_doublings():
    assert MEASURED.collective_seconds("all-reduce", 1e6, 2) == pytest.approx(1.1e-3)
    assert MEASURED.collective_seconds("all-reduce", 1e6, 4) == pytest.approx((1.1e-3 + 2.3e-3) / 2)
    assert MEASURED.collective_seconds("all-reduce", 1e6, 64) == pytest.approx(2.3e-3)
    assert MEASURED.collective_seconds("all-to-all", 1e6, 2) is None
    assert MEASURED.seconds_across_rows(1e6, 1024) == pytest.approx((1e-3 + 1e-2) / 2)
    assert MEASURED.seconds_across_rows(1e6, 1) == pytest.approx(1e-3)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("num_devices",), 0),
        (("seconds_per_step",), -1.0),
        (("seconds_per_operation",), "fast"),
        (("across_rows",), {}),
        (("across_rows", "256"), 0),
        (("collectives", "all-reduce", "2"), [1e-4]),
        (("collectives", "all-reduce", "2"), [1e-4, 0]),
        (("collectives", "all-reduce"), {"1": [1e-4, 1e9]}),
        (("collectives",), []),
    ],
)
def test_what_cannot_have_been_measured(path, value):
    table = copy.deepcopy(MEASURED.to_table())
    at = table
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    assert not is_measured(table)


def test_no_table_at_all():
    assert not is_measured(3)
    assert not is_measured(tomllib.loads("num_devices = 8"))
