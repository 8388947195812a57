"""The table of facts and verdicts: each row is a fault that a job had, or a healthy job that was killed once."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlay.jobs.job_folder import AFTER_THE_LAST, FINISHED, Beat
from outlay.jobs.stall import BEFORE_THE_FIRST, BETWEEN_STEPS, OFF, TOGETHER
from outlay.jobs.verdict import GRACE, Failed, Kind, Lost, Patience, ProcessFacts, verdict

LAUNCHER = Patience(settle=0.4, echo=5.0, slow_exchange=0.0)
PEERS = Patience()
ASKED = Patience(is_explicit=True, together=8.0)  # --stuck-after 8

STEP, LAST, COMPILING = (
    Beat(12, 1.0, "step 13", 40),
    Beat(40, 1.0, AFTER_THE_LAST, 40),
    Beat(None, 1.0, "compiling", 40),
)
ENDED_AT_12, ENDED_AT_40 = Beat(12, 1.0, FINISHED, 40), Beat(40, 1.0, FINISHED, 40)
NO_STEPS, HERE, ON_THE_WAY = Beat(None, 1.0, FINISHED), Beat(None, 1.0, "joined"), Beat(None, 1.0, "joining")
CAUSE, ECHO = Failed(at=1.0, ago=9.0), Failed(at=0.5, ago=9.0, is_echo=True)


def steps(**facts):
    """A process between its steps."""
    return ProcessFacts(0, **{"beat": STEP, "limit": BETWEEN_STEPS, "silent": 1.0, "seconds_a_step": 0.05, **facts})


def waits(seconds=10.0, **facts):
    return steps(**{"waits": seconds, "silent": seconds, **facts})


def finished(beat=ENDED_AT_12, **facts):
    return ProcessFacts(0, has_finished=True, beat=beat, **facts)


def exited(beat=ENDED_AT_12, **facts):
    return ProcessFacts(0, has_exited=True, beat=beat, **facts)


def failed(how=CAUSE, **facts):
    return ProcessFacts(0, failed=how, beat=STEP, **facts)


def lost(beat=STEP, **how):
    return ProcessFacts(0, beat=beat, lost=Lost(**how))


def job(*processes):
    return [replace(one, process=number) for number, one in enumerate(processes)]


GOES_ON = None
TABLE = {
    # A failure, and what the others say of it.
    "an exception, a signal, sys.exit(7), an exit code": (LAUNCHER, [steps(), failed()], (Kind.FAILED, (1,), 1)),
    "the same of process 0": (LAUNCHER, [failed(), steps()], (Kind.FAILED, (0,), 0)),
    "the same without a launcher, at once": (
        PEERS,
        [failed(Failed(1.0, 0.0)), steps(), steps()],
        (Kind.FAILED, (0,), 0),
    ),
    "a failure just now: the first may not be known yet": (LAUNCHER, [failed(Failed(1.0, 0.1)), steps()], GOES_ON),
    "... but where nobody runs, nothing more comes": (
        LAUNCHER,
        [failed(Failed(2.0, 0.1)), failed(Failed(1.0, 0.1))],
        (Kind.FAILED, (1,), 1),
    ),
    "both fail of themselves: the earlier": (
        LAUNCHER,
        [failed(Failed(1.0, 9.0)), failed(Failed(0.9, 9.0))],
        (Kind.FAILED, (1,), 1),
    ),
    "both at one moment: the lower number": (PEERS, [steps(), failed(), failed()], (Kind.FAILED, (1,), 1)),
    "an echo came before its cause": (LAUNCHER, [failed(ECHO), failed(CAUSE)], (Kind.FAILED, (1,), 1)),
    "only an echo yet: the other may still be ending": (
        LAUNCHER,
        [failed(Failed(1.0, 3.0, is_echo=True)), steps()],
        GOES_ON,
    ),
    "only an echo, and nobody to blame": (LAUNCHER, [failed(ECHO), steps()], (Kind.FAILED, (0,), 0)),
    "SIGABRT of one that gave up on a process that is held": (
        LAUNCHER,
        [failed(ECHO), steps(held=30.0)],
        (Kind.FAILED, (1,), 0),
    ),
    "a failure of its own, beside one that is held": (
        LAUNCHER,
        [failed(), steps(held=30.0)],
        (Kind.FAILED, (0,), 0),
    ),
    "os._exit(0): the others lose it": (LAUNCHER, [exited(STEP), failed(ECHO)], (Kind.FAILED, (0,), 1)),
    "who finished and waits for the others is not to blame for an echo": (
        LAUNCHER,
        [finished(ENDED_AT_40), failed(ECHO)],
        (Kind.FAILED, (1,), 1),
    ),
    # Without a launcher: gone without a word.
    "killed": (PEERS, [steps(), lost(ago=GRACE + 1)], (Kind.LOST, (1,), None)),
    "it has just hung up, which may be an end": (PEERS, [steps(), lost(ago=0.5)], GOES_ON),
    "its machine does not answer": (PEERS, [steps(), lost(ago=0.0, hung_up=False)], (Kind.LOST, (1,), None)),
    "killed, and another one has lost it": (
        PEERS,
        [failed(Failed(1.0, 0.1, is_echo=True)), lost(ago=0.1), steps()],
        (Kind.LOST, (1,), None),
    ),
    "the echo alone, for a moment": (PEERS, [failed(Failed(1.0, 1.0, is_echo=True)), steps()], GOES_ON),
    "the echo alone": (PEERS, [failed(ECHO), steps()], (Kind.FAILED, (0,), 0)),
    "two are killed: the first": (PEERS, [steps(), lost(ago=5.0), lost(ago=6.0)], (Kind.LOST, (2,), None)),
    "it went after its last step: the others may work": (PEERS, [steps(), lost(LAST, ago=60.0)], GOES_ON),
    "... unless they wait for it": (PEERS, [waits(61.0), lost(LAST, ago=60.0)], (Kind.LOST, (1,), None)),
    "... and JAX would wait for it when they are done": (
        PEERS,
        [finished(ENDED_AT_40), lost(LAST, ago=0.1)],
        (Kind.LOST, (1,), None),
    ),
    "it finished, and was killed before the others had": (
        PEERS,
        [finished(), finished(lost=Lost(0.1))],
        (Kind.LOST, (1,), None),
    ),
    # Ended well, too early.
    "exit code 0 in the middle, the others wait in JAX": (
        LAUNCHER,
        [waits(2.0), exited()],
        (Kind.LEFT_EARLY, (1,), None),
    ),
    "the same in a program that reports nothing": (
        LAUNCHER,
        [ProcessFacts(0, beat=HERE, waits=2.0), finished(NO_STEPS)],
        (Kind.LEFT_EARLY, (1,), None),
    ),
    "os._exit(0) in the middle of a step, and JAX's wait does not show": (
        LAUNCHER,
        [exited(STEP), steps(silent=2.0)],
        (Kind.LEFT_EARLY, (0,), None),
    ),
    "... steps take as long as they take": (LAUNCHER, [exited(STEP), steps(silent=9.0, seconds_a_step=1.0)], GOES_ON),
    "healthy: all stop before the last step, and one exports": (
        LAUNCHER,
        [finished(ENDED_AT_12), steps(silent=9.0)],
        GOES_ON,
    ),
    "steps of ten seconds, on one machine": (
        LAUNCHER,
        [exited(), waits(2.0, seconds_a_step=10.0)],
        (Kind.LEFT_EARLY, (0,), None),
    ),
    "healthy: the same between machines, over a slow network": (
        PEERS,
        [finished(), waits(20.0, seconds_a_step=10.0)],
        GOES_ON,
    ),
    "of three, one still works": (LAUNCHER, [waits(), exited(), steps()], GOES_ON),
    "of three, two have ended": (LAUNCHER, [exited(), waits(), finished()], (Kind.LEFT_EARLY, (0, 2), None)),
    "healthy: an upload after the last step, for hours": (
        LAUNCHER,
        [ProcessFacts(0, beat=LAST, silent=9999.0), exited(ENDED_AT_40)],
        GOES_ON,
    ),
    "healthy: evaluation that waits in JAX for its own devices": (
        LAUNCHER,
        [ProcessFacts(0, beat=LAST, silent=9999.0, waits=1.0), finished(ENDED_AT_40)],
        GOES_ON,
    ),
    # Before outlay.join().
    "exit code 0 before join, another waits there": (
        LAUNCHER,
        [ProcessFacts(0, beat=ON_THE_WAY), exited(None), exited(ON_THE_WAY)],
        (Kind.NEVER_JOINED, (1, 2), None),
    ),
    "exit code 0 before join, nobody has come there": (LAUNCHER, [ProcessFacts(0), exited(None)], GOES_ON),
    "a launcher in front of programs that join nothing": (
        LAUNCHER,
        [exited(None), exited(None)],
        (Kind.WELL, (), None),
    ),
    # Stuck.
    "SIGSTOP, default limits": (LAUNCHER, [waits(61.0), steps(held=61.0)], (Kind.STUCK, (1,), None)),
    "SIGSTOP for less": (LAUNCHER, [waits(50.0), steps(held=50.0)], GOES_ON),
    "SIGSTOP, --stuck-after 8": (ASKED, [waits(9.0), steps(held=9.0)], (Kind.STUCK, (1,), None)),
    "--stuck-after off": (
        Patience(is_explicit=True, together=OFF),
        [waits(9e9, limit=OFF), steps(held=9e9, silent=9e9, limit=OFF)],
        GOES_ON,
    ),
    "without a launcher nobody hears of it": (
        PEERS,
        [waits(61.0), steps(unheard=TOGETHER + 1)],
        (Kind.STUCK, (1,), None),
    ),
    "nobody hears of it, and the others are at work": (PEERS, [steps(), steps(unheard=TOGETHER + 1)], GOES_ON),
    "an endless loop, a sleep, code that holds the GIL": (
        LAUNCHER,
        [waits(301.0), steps(silent=301.0)],
        (Kind.STUCK, (0, 1), None),
    ),
    "the same, --stuck-after 8": (ASKED, [waits(9.0, limit=8.0), steps(silent=1.0)], (Kind.STUCK, (0,), None)),
    "healthy: data that stall for minutes": (LAUNCHER, [waits(290.0), steps(silent=290.0)], GOES_ON),
    "healthy: all read from the same slow disk": (LAUNCHER, [steps(silent=400.0), steps(silent=400.0)], GOES_ON),
    "... but not for an hour": (
        LAUNCHER,
        [steps(silent=BEFORE_THE_FIRST + 1), steps(silent=400.0)],
        (Kind.STUCK, (0, 1), None),
    ),
    "healthy: one saves for ten minutes, the others wait": (
        LAUNCHER,
        [waits(600.0), steps(beat=Beat(12, 1.0, "saving", 40), limit=BEFORE_THE_FIRST, silent=600.0)],
        GOES_ON,
    ),
    "healthy: one compiles, and beats no step": (LAUNCHER, [waits(600.0), steps(beat=COMPILING, limit=None)], GOES_ON),
    "all wait in JAX for each other": (LAUNCHER, [waits(61.0), waits(61.0)], (Kind.STUCK, (0, 1), None)),
    "all wait for a long step of their GPUs": (
        LAUNCHER,
        [waits(61.0, works_unseen=True), waits(61.0, works_unseen=True)],
        GOES_ON,
    ),
    # Well.
    "all have finished": (PEERS, [finished(ENDED_AT_40), finished(ENDED_AT_40)], (Kind.WELL, (), None)),
    "a job at work": (LAUNCHER, [steps(), steps()], GOES_ON),
    "one is late by an hour, and the others have not begun": (
        PEERS,
        [ProcessFacts(0, beat=HERE, silent=3600.0), ProcessFacts(0, beat=HERE, silent=3600.0)],
        GOES_ON,
    ),
}


@pytest.mark.parametrize("row", TABLE)
def test_the_verdict_on(row):
    patience, processes, expected = TABLE[row]
    result = verdict(job(*processes), patience)
    assert (result and (result.kind, result.culprits, result.first)) == expected


def test_who_waits_in_jax_is_part_of_the_verdict():
    stuck = verdict(job(waits(301.0), steps(silent=301.0), waits(400.0)), LAUNCHER)
    assert stuck
    assert stuck.waiting == (0, 2)
    busy = verdict(job(steps(in_jax=True), steps(held=70.0)), LAUNCHER)
    assert busy
    assert busy.waiting == (0,)


SECONDS = st.sampled_from([0.0, 0.1, 1.0, 3.0, 10.0, 70.0, 400.0, 4000.0])
FACTS = st.builds(
    ProcessFacts,
    process=st.just(0),
    failed=st.none() | st.builds(Failed, at=SECONDS, ago=SECONDS, is_echo=st.booleans()),
    lost=st.none() | st.builds(Lost, ago=SECONDS, hung_up=st.booleans()),
    has_exited=st.booleans(),
    has_finished=st.booleans(),
    beat=st.sampled_from([None, STEP, LAST, COMPILING, ENDED_AT_12, ENDED_AT_40, NO_STEPS, HERE, ON_THE_WAY]),
    silent=SECONDS,
    limit=st.sampled_from([None, 8.0, BETWEEN_STEPS, BEFORE_THE_FIRST]),
    seconds_a_step=st.sampled_from([0.0, 0.05, 2.0]),
    waits=SECONDS,
    in_jax=st.booleans(),
    works_unseen=st.booleans(),
    held=st.none() | SECONDS,
    unheard=SECONDS,
)
JOBS = st.lists(FACTS, min_size=1, max_size=4).map(lambda processes: job(*processes))
PATIENCE = st.sampled_from([LAUNCHER, PEERS, ASKED])


@given(JOBS, PATIENCE, st.randoms(use_true_random=False))
def test_in_which_order_facts_arrive_does_not_matter(facts, patience, random):
    shuffled = random.sample(facts, len(facts))
    assert verdict(shuffled, patience) == verdict(facts, patience)


@given(JOBS, PATIENCE)
def test_exactly_one_process_is_named_first_if_any_failed_and_its_cause_comes_before_echoes(facts, patience):
    result = verdict(facts, patience)
    failures = {one.process: one.failed for one in facts if one.failed}
    if result is None or result.kind is not Kind.FAILED:
        assert result is None or result.first is None
        return
    first, causes = failures[result.first], [one for one in failures.values() if not one.is_echo]
    assert first.at == min(one.at for one in causes or failures.values())
    assert first.is_echo == (not causes)
    assert causes == [] or result.culprits == (result.first,)


@given(JOBS, PATIENCE)
def test_an_echo_is_blamed_only_where_nobody_else_can_be(facts, patience):
    result = verdict(facts, patience)
    echoes = {one.process for one in facts if one.failed and one.failed.is_echo}
    if result and echoes & set(result.culprits):
        assert result.culprits == (result.first,)
        assert not any(one.failed and not one.failed.is_echo for one in facts)
        assert not any((one.held is not None or one.has_exited) and not one.failed for one in facts)


@given(JOBS, PATIENCE)
def test_there_is_somebody_to_blame_unless_all_is_well(facts, patience):
    result = verdict(facts, patience)
    if result is not None:
        assert list(result.culprits) == sorted(set(result.culprits))
        assert set(result.culprits) | set(result.waiting) <= {one.process for one in facts}
        assert bool(result.culprits) == (result.kind is not Kind.WELL)
    if all(one.has_finished and not one.failed and not one.lost for one in facts):
        assert result
        assert result.kind is Kind.WELL


@given(JOBS, PATIENCE)
def test_a_job_whose_processes_all_work_goes_on(facts, patience):
    """As long as nobody fails or goes, and whoever runs has just shown a sign of life."""
    working = [
        replace(one, failed=None, lost=None, has_exited=False, silent=0.0, waits=0.0, held=None, unheard=0.0)
        for one in facts
    ]
    if any(one.is_running for one in working):
        assert verdict(working, patience) is None


@given(JOBS, PATIENCE)
def test_nobody_who_runs_is_said_to_have_left_and_nobody_who_ended_to_be_stuck(facts, patience):
    result = verdict(facts, patience)
    running = {one.process for one in facts if one.is_running}
    if result and result.kind in (Kind.LEFT_EARLY, Kind.NEVER_JOINED, Kind.LOST):
        assert not running & set(result.culprits)
    if result and result.kind is Kind.STUCK:
        assert set(result.culprits) <= running
