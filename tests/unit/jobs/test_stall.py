import pytest

from outlay.jobs import stall
from outlay.jobs.job_folder import Beat
from outlay.jobs.stall import BEFORE_THE_FIRST, BETWEEN_STEPS, OFF, TIMES_A_GAP, TOGETHER, Limits, Silence


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass when the test says so."""

    class Clock:
        now = 1000.0

        def monotonic(self):
            return self.now

    made = Clock()
    monkeypatch.setattr(stall, "time", made)
    return made


def stepping(clock, *, seconds, num_steps=10, limits=None, of=None):
    followed = Silence(limits or Limits())
    for step in range(num_steps):
        clock.now += seconds
        followed.see(Beat(step + 1, clock.now, f"step {step + 2}", of), None)
    return followed


def is_too_long(followed, clock):
    return followed.limit is not None and followed.seconds(clock.now) > followed.limit


@pytest.mark.parametrize(
    ("seconds", "still_fine"),
    [(60, 60 * TIMES_A_GAP - 1), (0.01, BETWEEN_STEPS - 1)],
    ids=["twenty times", "or minutes"],
)
@pytest.mark.parametrize("num_steps", [2, 10], ids=["from the first on", "later"])
def test_data_may_stall_for_minutes_and_longer_where_that_is_usual(clock, seconds, still_fine, num_steps):
    followed = stepping(clock, seconds=seconds, num_steps=num_steps)
    clock.now += still_fine
    assert not is_too_long(followed, clock)
    clock.now += 2
    assert is_too_long(followed, clock)


def test_it_learns_from_the_longest_time_not_from_the_usual(clock):
    followed = stepping(clock, seconds=0.1)
    clock.now += 100
    followed.see(Beat(11, clock.now, "step 12"), None)
    clock.now += 100 * TIMES_A_GAP - 1
    assert not is_too_long(followed, clock)


@pytest.mark.parametrize(("doing", "step"), [("compiling", None), ("step 1", None), ("saving", 3)])
def test_compiling_the_first_step_and_saving_may_take_half_an_hour(clock, doing, step):
    followed = Silence(Limits())
    followed.see(Beat(step, clock.now, doing), None)
    clock.now += BEFORE_THE_FIRST - 1
    assert not is_too_long(followed, clock)
    clock.now += 2
    assert is_too_long(followed, clock)


@pytest.mark.parametrize("doing", ["what follows the last step", "finished", "step 11", "saving"])
def test_after_the_last_step_it_may_take_any_time(clock, doing):
    followed = stepping(clock, seconds=0.01, of=10)
    followed.see(Beat(10, clock.now, doing, 10), None)
    clock.now += 10_000
    assert not is_too_long(followed, clock)


@pytest.mark.parametrize("doing", [None, "joining", "meeting the others", "joined"])
def test_nothing_is_known_of_a_process_that_says_nothing_of_its_own(clock, doing):
    followed = Silence(Limits())
    followed.see(doing and Beat(None, clock.now, doing), None)
    clock.now += 10_000
    assert not is_too_long(followed, clock)


def test_the_user_can_say_how_long_whatever_it_does(clock):
    followed = Silence(Limits(5.0))
    clock.now += 4
    followed.see(None, clock.now)  # a line of output
    clock.now += 4
    assert not is_too_long(followed, clock)
    clock.now += 2
    assert is_too_long(followed, clock)


def test_the_start_has_a_limit_of_its_own(clock):
    followed = Silence(Limits(5.0, start_within=50.0))
    followed.see(Beat(None, clock.now, "compiling"), None)
    clock.now += 49
    assert not is_too_long(followed, clock)
    followed.see(Beat(1, clock.now, "step 2"), None)
    clock.now += 6
    assert is_too_long(followed, clock)


def test_limits_can_be_switched_off(clock):
    followed = stepping(clock, seconds=0.01, limits=Limits(OFF))
    clock.now += 1e6
    assert not is_too_long(followed, clock)
    assert (Limits().together(), Limits(5.0).together(), Limits(OFF).together()) == (TOGETHER, 5.0, OFF)


def test_time_in_which_nobody_could_work_is_no_silence(clock):
    followed = stepping(clock, seconds=1)
    clock.now += 10_000
    followed.pause(9_990)
    assert followed.seconds(clock.now) == 10
    followed.see(Beat(11, clock.now, "step 12"), None)
    clock.now += BETWEEN_STEPS + 1
    assert is_too_long(followed, clock)  # the pause was not taken for a long step


def test_it_says_what_it_was_doing(clock):
    followed = stepping(clock, seconds=1)
    clock.now += 7
    assert str(followed) == "step 10 finished, in 'step 11' for 7.0 s"
