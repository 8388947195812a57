"""The processes of a job watch each other over the connections on which they met, whatever started them.

Process 0 hears of every beat, of every end and of every connection that breaks, and decides for all: that all have
finished, before which nobody leaves; that one has failed or gone, so that the others end too; that the job is stuck.
Under `outlay launch` it is the launcher that ends them, since it sees more; then only the common end is decided here.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import selectors
import sys
import threading
import time
from dataclasses import asdict
from typing import NoReturn

from outlay.jobs.connection import Connection, Disconnected, Message
from outlay.jobs.exit_codes import LOST, STUCK
from outlay.jobs.heartbeat import last_beat, report_to, seconds_waiting_in_jax
from outlay.jobs.job_folder import Beat
from outlay.jobs.rendezvous import Rendezvous
from outlay.jobs.stall import OFF, Limits, Silence

_EVERY = 1.0  # seconds between signs of life
_AT_MOST_A_SECOND = 200  # messages to process 0 of all together
_GRACE = 2.0  # seconds after a process has gone without a word: it may have been its way to end well, as it is others'
_LAST_WORDS = 3.0  # seconds for process 0 to decide, when this process knows only that another one has gone
_TO_TELL = 20.0  # seconds for process 0 to decide about its own failure, and to tell all
_NEEDED = 60.0  # seconds of waiting in JAX, after which one that went after its last step is needed still
_LEFT_EARLY = 3.0  # seconds in which those that remain wait for what cannot come
_PAUSE = 5.0  # seconds between two looks after which this process was held itself, and knows nothing of the others


class PeerWatch:
    """This process's part in watching the processes of its job.

    Args:
        met: the other processes, as they met.
        acts: whether to end this process where another one has failed or gone; False where a launcher does that.
        stuck_after: seconds without a finished step after which the job is stuck; None for a rule by its own steps, 0
            for never.
    """

    def __init__(self, met: Rendezvous, *, acts: bool, stuck_after: float | None) -> None:
        self._me, self._hosts = met.info.process, met.hosts
        self._connections = dict(met.connections)
        self._num = met.info.num_processes
        self._acts, self._pid = acts, os.getpid()
        # With many processes each reports less often, so that process 0 keeps up.
        self._every = max(_EVERY, self._num / _AT_MOST_A_SECOND)
        self._over = threading.Event()  # all have finished, or nobody waits for anybody
        self._finished: set[int] = set()
        self._gone: dict[int, tuple[float, str]] = {}
        self._failed: dict[int, Message] = {}
        self._beats: dict[int, Beat] = {}
        self._waiting: dict[int, float] = {}
        self._explicit = stuck_after is not None
        limits = Limits(OFF if stuck_after == 0 else stuck_after)
        self._together = limits.together()
        self._silence = {process: Silence(limits) for process in range(self._num)}
        self._heard_at = dict.fromkeys(range(self._num), time.monotonic())

    def start(self) -> None:
        """Start the thread that watches."""
        os.register_at_fork(after_in_child=self._forget)
        report_to(lambda: self._report(_sign_of_life(waiting=0.0)))
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
            self._take(0, message)
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
        looked_at, said_at = time.monotonic(), 0.0
        while not self._over.is_set():
            for key, _ in selector.select(0.2):
                try:
                    for message in self._connections[key.data].read():
                        self._take(key.data, message)
                except Disconnected as error:
                    selector.unregister(key.fileobj)
                    self._gone[key.data] = (time.monotonic(), str(error))
            now = time.monotonic()
            if now - looked_at > _PAUSE:  # the job was held, by SLURM perhaps, and goes on
                for process, silence in self._silence.items():
                    silence.pause(now - looked_at)
                    self._heard_at[process] += now - looked_at
                self._gone = {process: (at + now - looked_at, why) for process, (at, why) in self._gone.items()}
            looked_at = now
            if now - said_at > self._every:
                said_at = now
                self._take(0, _sign_of_life())
                self._tell({"here": True})
            self._decide(now)  # not by the time that it is then: this process may have been held since it looked
        while self._acts and _is_connected():
            self._see_off(selector)

    def _see_off(self, selector: selectors.BaseSelector) -> None:
        """End the job if one goes before the end of JAX, at which all wait for it: nobody leaves before that."""
        for key, _ in selector.select(0.2):
            try:
                self._connections[key.data].read()
            except Disconnected as error:
                selector.unregister(key.fileobj)
                self._gone[key.data] = (time.monotonic(), str(error))
        if any(time.monotonic() - since > _GRACE for since, _ in self._gone.values()) and _is_connected():
            verdict = self._lost(min(self._gone), " at the end of its program")
            self._tell({"end": verdict})
            self._obey(verdict)

    def _take(self, process: int, message: Message) -> None:
        self._heard_at[process] = time.monotonic()
        if "beat" in message:
            self._beats[process] = beat = Beat(**message["beat"])
            self._waiting[process] = message["waiting"]
            self._silence[process].see(beat if beat.doing else None, None)
        if "finished" in message:
            self._finished.add(process)
        if "failed" in message:
            self._failed.setdefault(process, message["failed"])

    def _tell(self, message: Message) -> None:
        for process, connection in self._connections.items():
            if process not in self._gone:
                connection.send(message)

    def _decide(self, looked: float) -> None:
        running = set(range(self._num)) - self._finished - set(self._gone)
        needed = any(self._waiting.get(process, 0.0) > _NEEDED for process in running)
        gone = {
            process
            for process in set(self._gone) - self._finished
            if needed or not self._is_past_the_end(process)  # which may be its way to end
        }
        if not running and not gone and not self._failed and not (self._acts and self._gone):
            self._tell({"over": True})
            self._over.set()
        elif self._acts and (verdict := self._verdict(gone, running, looked)):
            self._tell({"end": verdict})
            self._obey(verdict)

    def _verdict(self, gone: set[int], running: set[int], looked: float) -> Message | None:
        # Causes before echoes: one that lost another process may have reported before that one did.
        causes = [process for process, failed in self._failed.items() if not failed["echo"]]
        if causes:
            return self._failed_first(causes[0])
        for process in gone:
            since, why = self._gone[process]
            # One that hung up may be about to end well; one whose machine does not answer is not.
            if self._failed or "hung up" not in why or looked - since > _GRACE:
                return self._lost(process)
        if not running and self._gone and not self._failed:  # they would be waited for at the end of JAX
            return self._lost(min(self._gone), " after its last step")
        if self._failed and not gone:  # of which nobody knows more
            process, failed = next(iter(self._failed.items()))
            if looked - failed.setdefault("heard", looked) > _GRACE:
                return self._failed_first(process)
        if running and self._finished and self._left_early(running, looked):
            text = (
                f"{', '.join(map(self._named, sorted(self._finished)))} ended early, while the others wait for it: all "
                "processes must take the same steps"
            )
            return {"code": STUCK, "text": text, "stacks": sorted(running)}
        if running and self._is_stuck(running, looked):
            lines = [f"{self._named(process)}: {self._state_of(process, looked)}" for process in sorted(running)]
            return {"code": STUCK, "text": "\n".join(["the job is stuck", *lines]), "stacks": sorted(running)}
        return None

    def _lost(self, process: int, when: str = "") -> Message:
        text = f"{self._named(process)} has gone without a word{when}, or its machine has: {self._gone[process][1]}"
        return {"code": LOST, "text": text, "stacks": []}

    def _failed_first(self, process: int) -> Message:
        code, reason = self._failed[process]["code"], self._failed[process]["reason"]
        text = f"{self._named(process)} failed first: {reason}; exit code {code}"
        return {"code": code, "text": text, "stacks": [], "but": process}

    def _left_early(self, running: set[int], looked: float) -> bool:
        """Return whether all that remain wait for those that have finished: in JAX, or in a step too many."""
        in_steps = any(self._is_between_steps(process) for process in self._finished)
        for process in running:
            silence = self._silence[process]
            patience = max(_LEFT_EARLY, 20 * (silence.seconds_a_step or 0))
            waits = self._waiting.get(process, 0.0) > patience
            stands = in_steps and self._is_between_steps(process) and silence.seconds(looked) > patience
            if not waits and not stands:
                return False
        return True

    def _is_stuck(self, running: set[int], looked: float) -> bool:
        """Return whether the job is stuck: one process if `stuck_after` is given, else all, as one may work for all."""
        beats = {process: beat for process in running if (beat := self._beats.get(process))}
        stepping = [process for process, beat in beats.items() if beat.step is not None or beat.of is not None]
        decide = any if self._explicit else all
        return bool(stepping and decide(self._silence[process].is_too_long(looked) for process in stepping)) or (
            self._are_held(running, looked)
        )

    def _are_held(self, running: set[int], looked: float) -> bool:
        """Return whether a process is held, by a signal such as SIGSTOP, and all others wait."""
        held = {process for process in running if looked - self._heard_at[process] > self._together}
        return bool(held) and all(self._waiting.get(process, 0.0) > self._together for process in running - held)

    def _state_of(self, process: int, looked: float) -> str:
        """Say what a process does, or did when it was last heard: a process that is held tells of no further step."""
        silent, silence = looked - self._heard_at[process], self._silence[process]
        if silent < 3 * self._every:
            return str(silence)
        beat = self._beats.get(process)
        steps = "nothing" if beat is None else f"{silence.done}, in {beat.doing!r}"
        return f"no sign of life for {silent:.1f} s; at the last one {steps}, and it may have gone on from there"

    def _is_between_steps(self, process: int) -> bool:
        beat = self._beats.get(process)
        return beat is not None and beat.doing.startswith("step ")

    def _is_past_the_end(self, process: int) -> bool:
        beat = self._beats.get(process)
        return beat is not None and beat.step is not None and beat.step == beat.of

    def _named(self, process: int) -> str:
        return f"process {process} of {self._num} on {self._hosts[process]}"

    # All others

    def _follow(self) -> None:
        connection = self._connections[0]
        self._follow_steps(connection, self._silence[self._me])
        with contextlib.suppress(Disconnected):  # of process 0 it is JAX that tells
            while self._acts and _is_connected():
                if (message := connection.wait_for(time.monotonic() + 0.2)) and "end" in message:
                    self._obey(message["end"])

    def _follow_steps(self, connection: Connection, own: Silence) -> None:
        said_at, heard_at = 0.0, time.monotonic()
        looked_at = heard_at
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
                heard_at += now - looked_at
            heard_at, looked_at = now if message else heard_at, now
            if now - said_at > self._every:
                said_at = now
                connection.send(_sign_of_life())
                own.see(beat if (beat := last_beat()).doing else None, None)
            self._look_for_process_0(now - heard_at, now)

    def _look_for_process_0(self, silent: float, looked: float) -> None:
        """End this process if process 0 is held, as by SIGSTOP, and this process waits: nobody else can decide."""
        is_waiting = seconds_waiting_in_jax() > self._together or (
            self._explicit and self._silence[self._me].is_too_long(looked)
        )
        if self._acts and silent > self._together and is_waiting:
            silence = f"has given no sign of life for {silent:.0f} s, and the others wait for it"
            text = f"the job is stuck\n{self._named(0)} {silence}"
            self._obey({"code": STUCK, "text": text, "stacks": [self._me]})

    def _without_process_0(self, why: str) -> None:
        if not self._acts:  # the launcher sees it, and this process must not look like the one that failed
            time.sleep(_LAST_WORDS)
        elif not self._over.is_set():
            self._obey({"code": LOST, "text": f"{self._named(0)} has gone without a word, or its machine has: {why}"})
        self._over.set()

    def _obey(self, verdict: Message) -> None:
        """End this process as process 0 has decided."""
        if verdict.get("but") == self._me:  # which knows itself, and ends by itself
            self._over.set()
            return
        leave(int(verdict["code"]), f"{verdict['text']}\n", stacks=self._me in verdict.get("stacks", ()))


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
    flushing = threading.Thread(target=_say, args=(text,), daemon=True)
    flushing.start()
    flushing.join(1.0)
    os._exit(code)


def _say(text: str) -> None:
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


def _sign_of_life(waiting: float | None = None) -> Message:
    return {"beat": asdict(last_beat()), "waiting": seconds_waiting_in_jax() if waiting is None else waiting}
