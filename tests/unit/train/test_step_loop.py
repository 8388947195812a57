import contextlib

import pytest

from outlay.core.error_types import OutputError
from outlay.train.step_loop import StepLoop


class Counting(StepLoop):
    """Calls that return their own number; what becomes of the results is a list."""

    def __init__(self, num_steps, fails_at, error):
        super().__init__(None, num_steps, step=0, state=None, saving=None)
        self.fails_at, self.error = fails_at, error
        self.begun, self.recorded = [], []

    def begin(self, stack: contextlib.ExitStack) -> float:
        return 0.0

    def call(self, start, stop):
        self.begun.append(start)
        return start

    def fetch(self, results):
        return results

    def record(self, start, stop, fetched):
        if start == self.fails_at:
            raise self.error
        self.recorded.append(fetched)
        return ""

    def partial(self):
        return list(self.recorded), "; kept"


def test_what_is_under_way_when_a_result_cannot_be_recorded_is_not_recorded_after_a_gap():
    loop = Counting(6, fails_at=2, error=ValueError("planted"))
    with pytest.raises(ValueError, match="planted"):
        loop.run(None)
    assert loop.begun == [0, 1, 2, 3]  # one more is under way
    assert loop.recorded == [0, 1]


def test_results_that_were_there_before_a_call_fails_are_recorded():
    loop = Counting(6, fails_at=None, error=None)
    call = loop.call

    def failing(start, stop):
        if start == 3:
            raise ValueError("planted")
        return call(start, stop)

    loop.call = failing
    with pytest.raises(ValueError, match="planted"):
        loop.run(None)
    assert loop.recorded == [0, 1, 2]


def test_a_file_that_cannot_be_written_is_told_with_the_step():
    loop = Counting(6, fails_at=2, error=OutputError("full\n  fix: make room"))
    with pytest.raises(OutputError, match=r"full; the run stopped after step 3 of 6.*\n  fix: make room"):
        loop.run(None)
