import pytest

from outlay.launch import silence
from outlay.launch.job_folder import Beat
from outlay.launch.silence import Silence


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass when the test says so."""

    class Clock:
        now = 1000.0

        def monotonic(self):
            return self.now

    made = Clock()
    monkeypatch.setattr(silence, "time", made)
    return made


def stepping(clock, *, seconds, num_steps=10, stuck_after=None):
    followed = Silence(stuck_after)
    for step in range(num_steps):
        clock.now += seconds
        followed.see(Beat(step + 1, clock.now, f"step {step + 2}"), None)
    return followed


@pytest.mark.parametrize(("seconds", "still_fine"), [(10, 199), (0.01, 59)], ids=["twenty steps", "or a minute"])
def test_a_process_may_be_silent_for_twenty_steps_or_a_minute(clock, seconds, still_fine):
    followed = stepping(clock, seconds=seconds)
    clock.now += still_fine
    assert not followed.is_too_long()
    clock.now += 2
    assert followed.is_too_long()


@pytest.mark.parametrize("doing", ["compiling", "saving", "finished"])
def test_what_is_no_step_takes_any_time(clock, doing):
    followed = stepping(clock, seconds=0.01)
    followed.see(Beat(10, clock.now, doing), None)
    clock.now += 10_000
    assert not followed.is_too_long()


def test_nothing_is_known_of_a_process_that_never_beats(clock):
    followed = Silence(None)
    clock.now += 10_000
    assert not followed.is_too_long()


def test_the_user_can_say_how_long_whatever_it_does(clock):
    followed = Silence(5.0)
    clock.now += 4
    followed.see(None, clock.now)  # a line of output
    clock.now += 4
    assert not followed.is_too_long()
    clock.now += 2
    assert followed.is_too_long()


def test_it_says_what_it_was_doing(clock):
    followed = stepping(clock, seconds=1)
    clock.now += 7
    assert str(followed) == "step 10 finished, in 'step 11' for 7.0 s"
