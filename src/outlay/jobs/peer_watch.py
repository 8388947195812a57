"""The processes of a job watch each other over the connections on which they met, whatever started them.

Process 0 hears of every beat, of every end and of every connection that breaks, asks for a verdict on these facts, and
tells all. Under `outlay launch` it is the launcher that ends them, since it sees more: then only the common end is
decided here.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import selectors
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import NoReturn

from outlay.jobs.connection import Connection, Disconnected, Message
from outlay.jobs.exit_codes import LOST, STUCK
from outlay.jobs.heartbeat import last_beat, report_to, write_wait
from outlay.jobs.job_folder import Beat, Wait
from outlay.jobs.rendezvous import Rendezvous
from outlay.jobs.stall import OFF, Limits, Silence
from outlay.jobs.verdict import GRACE, Failed, Kind, Lost, Patience, ProcessFacts, Verdict, verdict
from outlay.jobs.waiting import NO_WAIT, Devices, Waiting

_EVERY = 1.0  # seconds between signs of life
_AT_MOST_A_SECOND = 200  # messages to process 0 of all together
_LAST_WORDS = 3.0  # seconds for process 0 to decide, when this process knows only that another one has gone
_TO_TELL = 20.0  # seconds for process 0 to decide about its own failure, and to tell all
_PAUSE = 5.0  # seconds between two looks after which this process was held itself, and knows nothing of the others


@dataclass
class _Peer:
    """What process 0 has heard of a process.

    Attributes:
        silence: the time since its last sign of progress.
        heard_at: when it last told anything.
        wait: for how long it waits in JAX.
        beat: its last heartbeat.
        has_finished: whether its program has ended well.
        failed: its report of a failure, and when it came.
        lost: when its connection closed, and why.
    """

    silence: Silence
    heard_at: float
    wait: Wait = NO_WAIT
    beat: Beat | None = None
    has_finished: bool = False
    failed: tuple[float, Message] | None = None
    lost: tuple[float, str] | None = None

    def take(self, message: Message) -> None:
        self.heard_at = time.monotonic()
        if "beat" in message:
            self.beat, self.wait = Beat(**message["beat"]), Wait(**message["wait"])
            self.silence.see(self.beat if self.beat.doing else None, None)
        if "finished" in message:
            self.has_finished = True
        if "failed" in message:
            self.failed = self.failed or (self.heard_at, message["failed"])

    def pause(self, seconds: float) -> None:
        """Leave out these seconds, in which process 0 did not run."""
        self.silence.pause(seconds)
        self.heard_at += seconds
        if self.lost:
            self.lost = (self.lost[0] + seconds, self.lost[1])

    def facts(self, process: int, now: float) -> ProcessFacts:
        reports_steps = self.beat is not None and (self.beat.step is not None or self.beat.of is not None)
        failed, lost = self.failed, self.lost
        return ProcessFacts(
            process,
            failed=Failed(failed[0], now - failed[0], bool(failed[1]["echo"])) if failed else None,
            lost=Lost(now - lost[0], "hung up" in lost[1]) if lost else None,
            has_finished=self.has_finished,
            beat=self.beat,
            silent=self.silence.seconds(now),
            limit=self.silence.limit if reports_steps else None,
            seconds_a_step=self.silence.seconds_a_step or 0.0,
            waits=self.wait.seconds,
            in_jax=self.wait.in_jax,
            works_unseen=self.wait.works_unseen,
            unheard=now - self.heard_at,
        )


class PeerWatch:
    """This process's part in watching the processes of its job.

    Args:
        met: the other processes, as they met.
        acts: whether to end this process where another one has failed or gone; False where a launcher does that.
        stuck_after: seconds without a finished step after which the job is stuck; None for a rule by its own steps, 0
            for never.
        devices: how to ask JAX whether this process waits for it.
    """

    def __init__(
        self, met: Rendezvous, *, acts: bool, stuck_after: float | None, devices: Devices | None = None
    ) -> None:
        self._me, self._hosts = met.info.process, met.hosts
        self._connections = dict(met.connections)
        self._num = met.info.num_processes
        self._acts, self._pid = acts, os.getpid()
        # With many processes each reports less often, so that process 0 keeps up.
        self._every = max(_EVERY, self._num / _AT_MOST_A_SECOND)
        self._over = threading.Event()  # all have finished, or nobody waits for anybody
        limits = Limits(OFF if stuck_after == 0 else stuck_after)
        self._patience = Patience(together=limits.together(), is_explicit=stuck_after is not None)
        self._waiting = Waiting(devices)
        self._peers = [_Peer(Silence(limits), time.monotonic()) for _ in range(self._num)]

    def start(self) -> None:
        """Start the thread that watches."""
        os.register_at_fork(after_in_child=self._forget)
        report_to(lambda: self._report(_sign_of_life(NO_WAIT)))
        target = self._lead if self._me == 0 else self._follow
        threading.Thread(target=target, name="outlay-guard", daemon=True).start()

    def finish(self) -> None:
        """Report that this program has ended well, and wait until all others have, however long they work."""
        self._report({"finished": True})
        while not self._over.wait(0.2):
            pass

    def fail(self, code: int, reason: str, *, is_echo: bool = False) -> int:
        """Report that this process ends as a failure; return the exit code to end with.

        Args:
            code: its exit code.
            reason: why, in a line.
            is_echo: whether it only says that another process has gone, whose exit code is then used.

        Returns:
            The exit code to end with.
        """
        if not self._acts or self._over.is_set():
            return code
        self._report({"failed": {"code": code, "reason": reason[:500], "echo": is_echo}})
        # Process 0 answers by ending this process; in process 0 itself a thread has to tell the others first.
        self._over.wait(_TO_TELL if self._me == 0 else _LAST_WORDS if is_echo else _EVERY)
        return code

    def _report(self, message: Message) -> None:
        if os.getpid() != self._pid:
            return
        if self._me == 0:
            self._peers[0].take(message)
        else:
            self._connections[0].send(message)

    def _forget(self) -> None:
        """Close the connections in a fork of this process: it is not of the job, and must not hold them open."""
        self._over.set()
        for connection in self._connections.values():
            connection.close()

    # Process 0

    def _lead(self) -> None:
        selector = selectors.DefaultSelector()
        for process, connection in self._connections.items():
            selector.register(connection, selectors.EVENT_READ, process)
        looked_at, reported_at = time.monotonic(), 0.0
        while not self._over.is_set():
            self._receive(selector)
            now = time.monotonic()
            if now - looked_at > _PAUSE:  # the job was held, by SLURM perhaps, and goes on
                for peer in self._peers:
                    peer.pause(now - looked_at)
            looked_at = now
            wait = self._sample()
            if now - reported_at > self._every:
                reported_at = now
                self._peers[0].take(_sign_of_life(wait))
                self._broadcast({"here": True})
            self._decide(now)  # not by the time that it is then: this process may have been held since it looked
        while self._acts and _is_connected():
            self._receive(selector)
            self._decide_at_the_end(time.monotonic())

    def _receive(self, selector: selectors.BaseSelector) -> None:
        for key, _ in selector.select(0.2):
            try:
                for message in self._connections[key.data].read():
                    self._peers[key.data].take(message)
            except Disconnected as error:
                selector.unregister(key.fileobj)
                self._peers[key.data].lost = (time.monotonic(), str(error))

    def _sample(self) -> Wait:
        """Look whether this process waits, and tell its launcher if it has one."""
        wait = self._waiting.sample()
        write_wait(wait)
        return wait

    def _broadcast(self, message: Message) -> None:
        for process, connection in self._connections.items():
            if not self._peers[process].lost:
                connection.send(message)

    def _facts(self, now: float) -> list[ProcessFacts]:
        facts = [peer.facts(process, now) for process, peer in enumerate(self._peers)]
        if self._acts:
            return facts
        # A launcher sees how one ended that has gone after its last step, and here it has ended.
        return [
            replace(one, lost=None, has_finished=True)
            if one.lost and (one.has_finished or one.has_taken_the_last)
            else one
            for one in facts
        ]

    def _decide(self, now: float) -> None:
        result = verdict(self._facts(now), self._patience)
        if result and result.kind is Kind.WELL:
            self._broadcast({"over": True})
            self._over.set()
        elif result and self._acts:
            self._end_all(self._in_words(result, now))

    def _decide_at_the_end(self, now: float) -> None:
        """End the job if one goes before the end of JAX, at which all wait for it: nobody leaves before that."""
        facts = [
            replace(one, has_finished=True, lost=one.lost if one.lost and one.lost.ago > GRACE else None)
            for one in self._facts(now)
        ]
        result = verdict(facts, self._patience)
        if result and result.kind is Kind.LOST and _is_connected():
            self._end_all(self._lost(result.culprits[0], " at the end of its program"))

    def _end_all(self, end: Message) -> None:
        self._broadcast({"end": end})
        self._obey(end)

    def _in_words(self, result: Verdict, now: float) -> Message:
        """Return a verdict as all processes are told it: exit code, text, and whose stacks show what it means."""
        named = ", ".join(map(self._named, result.culprits))
        running = [process for process, peer in enumerate(self._peers) if not (peer.has_finished or peer.lost)]
        if result.kind is Kind.LOST:
            is_late = all(
                self._peers[process].lost or self._peers[process].has_finished for process in range(self._num)
            )
            return self._lost(result.culprits[0], " after its last step" if is_late else "")
        if result.first is not None and (failed := self._peers[result.first].failed):
            _, failure = failed
            text = f"{named} failed first: {failure['reason']}; exit code {failure['code']}"
            return {"code": failure["code"], "text": text, "stacks": [], "but": result.first}
        if result.kind is Kind.LEFT_EARLY:
            text = f"{named} ended early, while the others wait for it: all processes must take the same steps"
            return {"code": STUCK, "text": text, "stacks": running}
        lines = [f"{self._named(process)}: {self._state_of(process, now)}" for process in running]
        return {"code": STUCK, "text": "\n".join(["the job is stuck", *lines]), "stacks": running}

    def _lost(self, process: int, when: str = "") -> Message:
        _, why = self._peers[process].lost or (0.0, "")
        return {"code": LOST, "text": f"{self._named(process)} {_GONE.format(when=when, why=why)}", "stacks": []}

    def _state_of(self, process: int, now: float) -> str:
        """Say what a process does, or did when it was last heard: a process that is held tells of no further step."""
        peer = self._peers[process]
        unheard = now - peer.heard_at
        if unheard < 3 * self._every:
            return str(peer.silence)
        steps = "nothing" if peer.beat is None else f"{peer.silence.done}, in {peer.beat.doing!r}"
        return f"no sign of life for {unheard:.1f} s; at the last one {steps}, and it may have gone on from there"

    def _named(self, process: int) -> str:
        return f"process {process} of {self._num} on {self._hosts[process]}"

    # All others

    def _follow(self) -> None:
        connection = self._connections[0]
        self._follow_steps(connection)
        with contextlib.suppress(Disconnected):  # of process 0 it is JAX that tells
            while self._acts and _is_connected():
                if (message := connection.wait_for(time.monotonic() + 0.2)) and "end" in message:
                    self._obey(message["end"])

    def _follow_steps(self, connection: Connection) -> None:
        own, leader = self._peers[self._me], self._peers[0]
        reported_at, looked_at = 0.0, time.monotonic()
        while not self._over.is_set():
            try:
                message = connection.wait_for(time.monotonic() + 0.2)
            except Disconnected as error:
                self._without_process_0(str(error))
                return
            if message and message.get("over"):
                self._over.set()
            if message and "end" in message and self._acts:
                self._obey(message["end"])
            now = time.monotonic()
            if now - looked_at > _PAUSE:  # this process was held itself
                own.pause(now - looked_at)
                leader.pause(now - looked_at)
            looked_at = now
            if message:
                leader.heard_at = now
            wait = self._sample()
            if now - reported_at > self._every:
                reported_at = now
                connection.send(_sign_of_life(wait))
                own.take(_sign_of_life(wait))
            self._look_for_process_0([leader.facts(0, now), own.facts(self._me, now)])

    def _look_for_process_0(self, facts: Sequence[ProcessFacts]) -> None:
        """End this process if process 0 is held, as by SIGSTOP, and this process waits: nobody else can decide."""
        leader, own = facts
        if self._patience.is_explicit and own.is_too_silent:
            own = replace(own, waits=own.silent)
        result = verdict([leader, replace(own, limit=None)], self._patience)
        if self._acts and result and result.culprits == (0,):
            silence = f"has given no sign of life for {leader.unheard:.0f} s, and the others wait for it"
            text = f"the job is stuck\n{self._named(0)} {silence}"
            self._obey({"code": STUCK, "text": text, "stacks": [self._me]})

    def _without_process_0(self, why: str) -> None:
        if not self._acts:  # the launcher sees it, and this process must not look like the one that failed
            time.sleep(_LAST_WORDS)
        elif not self._over.is_set():
            self._obey({"code": LOST, "text": f"{self._named(0)} {_GONE.format(when='', why=why)}"})
        self._over.set()

    def _obey(self, end: Message) -> None:
        """End this process as process 0 has decided."""
        if end.get("but") == self._me:  # which knows itself, and ends by itself
            self._over.set()
            return
        leave(int(end["code"]), f"{end['text']}\n", stacks=self._me in end.get("stacks", ()))


_GONE = "has gone without a word{when}, or its machine has: {why}"


def leave(code: int, text: str = "", *, stacks: bool = False) -> NoReturn:
    """End this process at once, without atexit hooks, which would wait for other processes.

    Args:
        code: the exit code.
        text: what to print.
        stacks: print where each thread is.
    """
    if stacks:
        with contextlib.suppress(OSError):
            faulthandler.dump_traceback(2, all_threads=True)
    # A stream may be in use by a thread that will not come back, or nobody reads it: not for ever.
    flushing = threading.Thread(target=_write_stderr, args=(text,), daemon=True)
    flushing.start()
    flushing.join(1.0)
    os._exit(code)


def _write_stderr(text: str) -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is sys.stderr:
                stream.write(text)
            stream.flush()
        except (OSError, ValueError, AttributeError):
            continue


def _is_connected() -> bool:
    """Return whether JAX holds this process in its job still: at its end it waits until all others come there."""
    if "jax" not in sys.modules:
        return False
    from outlay.core.jax_compat import coordination_client

    return coordination_client() is not None


def _sign_of_life(wait: Wait) -> Message:
    return {"beat": asdict(last_beat()), "wait": asdict(wait)}
