"""The one verdict over a job: who failed first, who left early, who is lost, who is held, who is stuck.

A pure function over facts. The launcher (`launcher/supervise.py`), and process 0 of a job without one
(`peer_watch.py`), gather what they know of each process, ask, and obey; they decide nothing. Its table is
`test_verdict.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from outlay.jobs.job_folder import JOINING, Beat, is_after_the_last
from outlay.jobs.stall import BEFORE_THE_FIRST, TOGETHER

GRACE = 2.0
"""Seconds after a connection has closed without a word: that may have been a way to end well, as it is others'."""

_NEEDED = 60.0  # seconds of waiting in JAX, after which one that went after its last step is needed still
_LEFT_EARLY = 1.5  # seconds in which those that remain wait for what cannot come
_STEPS_LATE = 20  # times what they take for a step, in which they may do without one


class Kind(StrEnum):
    """What has become of a job."""

    WELL = "well"
    FAILED = "failed"
    LOST = "lost"
    LEFT_EARLY = "left early"
    NEVER_JOINED = "never joined"
    STUCK = "stuck"


@dataclass(frozen=True)
class Failed:
    """A process has ended as a failure, or says that it does.

    Attributes:
        at: when, by a clock that orders the failures of a job.
        ago: for how many seconds that has been known.
        is_echo: whether it only says that another process has gone.
    """

    at: float
    ago: float = 0.0
    is_echo: bool = False


@dataclass(frozen=True)
class Lost:
    """The connection to a process is closed, and it has said nothing.

    Attributes:
        ago: for how many seconds that has been known.
        hung_up: whether it closed its end; False where its machine does not answer.
    """

    ago: float = 0.0
    hung_up: bool = True


@dataclass(frozen=True)
class ProcessFacts:
    """What is known of a process of a job.

    Attributes:
        process: its number.
        failed: that it failed; None where it has not.
        lost: that its connection is closed; None where it is not, or where a launcher sees the process itself.
        has_exited: whether it has exited with 0, or saved and stopped on request.
        has_finished: whether its program has ended well, so that it only waits for the others.
        beat: its last heartbeat; None before the first.
        silent: seconds since its last sign of life.
        limit: seconds for which it may be silent; None for any time.
        seconds_a_step: what it takes for a step; 0 where unknown.
        waits: seconds for which its main thread has waited in JAX, as for a collective, while nothing of it worked.
        in_jax: whether its main thread stands in JAX, whatever else is at work.
        works_unseen: whether its devices may work for one call without a sign of it in the process, as GPUs do.
        held: seconds for which a signal has held it; None where none does.
        unheard: seconds for which it has told nothing of itself, which may be the network's fault.
    """

    process: int
    failed: Failed | None = None
    lost: Lost | None = None
    has_exited: bool = False
    has_finished: bool = False
    beat: Beat | None = None
    silent: float = 0.0
    limit: float | None = None
    seconds_a_step: float = 0.0
    waits: float = 0.0
    in_jax: bool = False
    works_unseen: bool = False
    held: float | None = None
    unheard: float = 0.0

    @property
    def is_running(self) -> bool:
        """Whether its program still runs, as far as is known."""
        return not (self.failed or self.lost or self.has_exited or self.has_finished)

    @property
    def is_too_silent(self) -> bool:
        """Whether it has been silent for longer than it may."""
        return self.limit is not None and self.silent > self.limit

    @property
    def is_in_a_step(self) -> bool:
        """Whether it says that it takes a step, and has not taken its last one."""
        return self.beat is not None and self.beat.doing.startswith("step ") and not is_after_the_last(self.beat)

    @property
    def has_taken_the_last(self) -> bool:
        """Whether it has taken all its steps, after which its end may be one that nobody waits for."""
        return self.beat is not None and self.beat.step is not None and is_after_the_last(self.beat)


@dataclass(frozen=True)
class Patience:
    """For how long more facts are waited for.

    Attributes:
        settle: seconds after a failure in which others may fail, so that the first can be told from the last.
        echo: seconds after a failure that names no cause, in which the process that others have lost may still be
            ending: to write a core takes that long.
        together: seconds after which nothing more can come where all wait for each other, or a signal holds one.
        is_explicit: whether a user has said for how long a process may be silent, so that one is enough.
        slow_exchange: times what it takes for a step, for which a process may wait in JAX for machines elsewhere.
    """

    settle: float = 0.0
    echo: float = GRACE
    together: float = TOGETHER
    is_explicit: bool = False
    slow_exchange: float = _STEPS_LATE


@dataclass(frozen=True)
class Verdict:
    """What has become of a job, and who is to blame.

    Attributes:
        kind: what has become of it.
        culprits: the processes to blame, in order; empty where all is well.
        first: whose failure ends the job; where that only names an effect, it is not among the culprits.
        waiting: the processes that wait in JAX.
    """

    kind: Kind
    culprits: tuple[int, ...] = ()
    first: int | None = None
    waiting: tuple[int, ...] = ()


def verdict(facts: Sequence[ProcessFacts], patience: Patience) -> Verdict | None:
    """Return what has become of a job; None as long as it goes on, or as more facts may come.

    >>> verdict([ProcessFacts(0), ProcessFacts(1, failed=Failed(at=3.0))], Patience())
    Verdict(kind=<Kind.FAILED: 'failed'>, culprits=(1,), first=1, waiting=())
    """
    facts = sorted(facts, key=lambda one: one.process)
    if any(one.failed for one in facts):
        return _failed_first(facts, patience)
    if all(one.has_exited or one.has_finished for one in facts) and not any(one.lost for one in facts):
        return Verdict(Kind.WELL)
    rules = (_lost(facts), _never_joined(facts), _left_early(facts, patience), _stuck(facts, patience))
    return next((result for result in rules if result), None)


def _failed_first(facts: Sequence[ProcessFacts], patience: Patience) -> Verdict | None:
    """Causes come before echoes: a process that lost another one may report it first."""
    failures = [(one.failed, one.process) for one in facts if one.failed]
    age = max(failed.ago for failed, _ in failures)
    nobody_runs = not any(one.is_running or one.has_finished for one in facts)
    causes = [(failed.at, process) for failed, process in failures if not failed.is_echo]
    _, first = min(causes or [(failed.at, process) for failed, process in failures])
    if not nobody_runs and age < patience.settle:
        return None
    if causes:
        return Verdict(Kind.FAILED, (first,), first)
    if lost := _lost_too_soon(facts):
        return _earliest_lost(lost)
    others = [one for one in facts if not one.failed]
    to_blame = [one for one in others if one.held is not None] or [one for one in others if one.has_exited]
    if to_blame:
        return Verdict(Kind.FAILED, tuple(one.process for one in to_blame), first)
    return Verdict(Kind.FAILED, (first,), first) if nobody_runs or age > patience.echo else None


def _lost(facts: Sequence[ProcessFacts]) -> Verdict | None:
    lost = [one for one in facts if one.lost]
    if not any(one.is_running for one in facts):  # they would be waited for at the end of JAX
        return _earliest_lost(lost) if lost else None
    due = [one for one in _lost_too_soon(facts) if one.lost and (not one.lost.hung_up or one.lost.ago > GRACE)]
    return _earliest_lost(due) if due else None


def _lost_too_soon(facts: Sequence[ProcessFacts]) -> list[ProcessFacts]:
    """Return lost processes that are needed: after its last step a process is needed only if others wait for it.

    One that has told of a failure before is not lost: that it lost another one, perhaps, and which is looked for.
    """
    is_needed = any(one.waits > _NEEDED for one in facts if one.is_running)
    lost = [one for one in facts if one.lost and not one.has_finished and not one.failed]
    return [one for one in lost if is_needed or not one.has_taken_the_last]


def _earliest_lost(lost: Sequence[ProcessFacts]) -> Verdict:
    earliest = min(lost, key=lambda one: (-one.lost.ago if one.lost else 0.0, one.process))
    return Verdict(Kind.LOST, (earliest.process,))


def _never_joined(facts: Sequence[ProcessFacts]) -> Verdict | None:
    """Processes have ended well before they joined, while others wait for them there."""
    exited = [one for one in facts if one.has_exited and (one.beat is None or one.beat.doing in JOINING)]
    joining = any(one.is_running and one.beat is not None and one.beat.doing in JOINING for one in facts)
    return Verdict(Kind.NEVER_JOINED, tuple(one.process for one in exited)) if exited and joining else None


def _left_early(facts: Sequence[ProcessFacts], patience: Patience) -> Verdict | None:
    """Every running process waits for finished ones: in JAX, or in a later step than their last."""
    finished = [one for one in facts if one.has_finished or one.has_exited]
    running = [one for one in facts if one.is_running]
    in_steps = any(one.is_in_a_step for one in finished)
    if not finished or not running or not all(_waits_for_others(one, in_steps, patience) for one in running):
        return None
    return Verdict(Kind.LEFT_EARLY, tuple(one.process for one in finished), waiting=_waiting(running))


def _waits_for_others(one: ProcessFacts, in_steps: bool, patience: Patience) -> bool:
    """Return whether it waits in JAX, or stands in a step, where another one has ended in the middle of its steps."""
    in_jax = max(_LEFT_EARLY, patience.slow_exchange * one.seconds_a_step)
    in_a_step = max(_LEFT_EARLY, _STEPS_LATE * one.seconds_a_step)
    return one.waits > in_jax or (in_steps and one.is_in_a_step and one.silent > in_a_step)


def _stuck(facts: Sequence[ProcessFacts], patience: Patience) -> Verdict | None:
    running = [one for one in facts if one.is_running]
    culprits = _held(running, patience) or _silent(running, patience) or _waiting_for_each_other(facts, patience)
    if not culprits:
        return None
    return Verdict(Kind.STUCK, tuple(one.process for one in culprits), waiting=_waiting(running))


def _held(running: Sequence[ProcessFacts], patience: Patience) -> list[ProcessFacts]:
    """Return processes that a signal holds, or that are silent while all others wait for them."""
    if held := [one for one in running if one.held is not None and one.held > patience.together]:
        return held
    unheard = [one for one in running if one.unheard > patience.together]
    others = [one for one in running if one not in unheard]
    return unheard if all(one.waits > patience.together for one in others) else []


def _silent(running: Sequence[ProcessFacts], patience: Patience) -> list[ProcessFacts]:
    """Return processes that were silent for too long, unless one is at work and the others may wait for it."""
    late = [one for one in running if one.is_too_silent]
    if not late or patience.is_explicit:
        return late
    if any(not one.waits and not one.is_too_silent for one in running):
        return []
    # Where nobody waits for anybody, all are at work of their own, such as reading data from a slow disk.
    is_for_sure = any(one.waits for one in running) or any(one.silent > BEFORE_THE_FIRST for one in late)
    return late if is_for_sure else []


def _waiting_for_each_other(facts: Sequence[ProcessFacts], patience: Patience) -> list[ProcessFacts]:
    """Return all, where none has ended and each waits in JAX for another; not on devices that may work unseen."""
    if all(one.is_running and not one.works_unseen and one.waits > patience.together for one in facts):
        return list(facts)
    return []


def _waiting(facts: Sequence[ProcessFacts]) -> tuple[int, ...]:
    return tuple(one.process for one in facts if one.waits or one.in_jax)
