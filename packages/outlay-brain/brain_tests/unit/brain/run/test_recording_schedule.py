import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlay.brain.module import BrainError
from outlay.brain.run.recording_schedule import Filter, Moments, Trigger, Window


def test_windows_as_text():
    assert Window.parse("100..250.5ms") == Window(100, 250.5)
    assert Window.parse("100..") == Window(100, math.inf)
    assert Window.parse("..5") == Window(0, 5)


@pytest.mark.parametrize(
    ("text", "message"),
    [("100", "'100' is not a window of time"), ("a..b", "is not a window"), ("5..2", "from 5 to 2 ms holds no time")],
)
def test_what_is_no_window(text, message):
    with pytest.raises(BrainError, match=message):
        Window.parse(text)


def test_triggers_as_text():
    assert Trigger.parse("A:out_spikes>80") == Trigger("A:out_spikes", 80)
    assert Trigger.parse("A:out_spikes > 80 Hz ± 20 ms") == Trigger("A:out_spikes", 80, 20)
    assert Trigger.parse("A:signal > -0.5 +- 20") == Trigger("A:signal", -0.5, 20)


@pytest.mark.parametrize("text", ["A > 80", "A:x < 80", "A:x > fast", "A:x > 80 +-"])
def test_what_is_no_trigger(text):
    with pytest.raises(BrainError, match="is not a trigger\n  fix: MODULE:PORT > RATE"):
        Trigger.parse(text)


def recorded(moments, spikes, chunks, dt=1.0, stride=1):
    """The steps that are recorded of a run whose port wrote these spikes, in chunks of these lengths."""
    keep, start, written = Filter(moments, dt), 0, []
    for length in chunks:
        ports = {"A:out_spikes": spikes[start : start + length]}
        steps = np.arange(start + stride - 1, start + length, stride)
        filtered, rows = keep(start, ports, steps, {"x": steps * 10})
        assert rows.get("x", np.zeros(0)).tolist() == (filtered * 10).tolist()
        written += filtered.tolist()
        start += length
    steps, rows = keep.rest()
    assert rows.get("x", np.zeros(0)).tolist() == (steps * 10).tolist()
    return [*written, *steps.tolist()]


QUIET = np.zeros((100, 4), np.int8)


def test_windows_choose_steps_by_time():
    moments = Moments((Window(10, 12), Window(90, math.inf)))
    assert recorded(moments, QUIET, [50, 50]) == [10, 11, *range(90, 100)]
    assert recorded(moments, QUIET, [50, 50], dt=0.5) == [20, 21, 22, 23]


def test_a_trigger_records_before_and_after_it():
    spikes = QUIET.copy()
    spikes[50] = 1
    moments = Moments(triggers=(Trigger("A:out_spikes", above=999, around=5, over=1),))
    assert recorded(moments, spikes, [100]) == list(range(45, 56))


def test_a_rate_is_a_mean_over_time_and_neurons():
    spikes = QUIET.copy()
    spikes[50:54, 0] = 1  # one of 4 neurons in 4 of 10 ms: 100 Hz over 10 ms
    spikes[53, 0] = -1  # an inhibitory one
    steps = {
        above: recorded(Moments(triggers=(Trigger("A:out_spikes", above, around=0, over=10),)), spikes, [100])
        for above in (99, 101, 74)
    }
    assert steps[99] == list(range(53, 60))
    assert steps[101] == []
    assert steps[74] == list(range(52, 61))


@pytest.mark.compiles
@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(0, 30), st.integers(1, 15), st.integers(0, 9))
def test_chunks_change_nothing_of_what_is_recorded(chunks, around, over, seed):
    length = sum(chunks)
    spikes = (np.random.default_rng(seed).random((length, 3)) < 0.05).astype(np.int8)
    moments = Moments((Window(3, 7),), (Trigger("A:out_spikes", above=60, around=around, over=over),))
    assert recorded(moments, spikes, chunks) == recorded(moments, spikes, [length])


def test_with_neither_all_steps_are_recorded():
    assert recorded(Moments(), QUIET, [60, 40]) == list(range(100))
