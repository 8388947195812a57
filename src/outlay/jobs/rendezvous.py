"""The rendezvous of all processes of a job before JAX connects them: strangers are kept out, missing ones named.

JAX ends a process with an abort where another one is missing, and lets in whoever comes first. Here process 0 listens
for a moment at the address that JAX will use, and the others come to it. Both sides show that they know the job's token
without saying it (HMAC over the other one's random number); where there is none, it is the job's name that tells two
jobs apart, which keeps out mistakes but not malice. The connections stay open, for the processes to watch each other.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import selectors
import socket
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from outlay.core.error_types import JoinError
from outlay.jobs.connection import LOOPBACK_FIX, Connection, Disconnected, Listening, Message, listen, own_loopback
from outlay.jobs.process_info import ProcessInfo

_TRY_EVERY = 0.1  # seconds
_CONNECT_WITHIN = 5.0  # seconds; if nobody refuses, another port may still answer
_SLACK = 5.0  # seconds that the others wait longer than process 0, so that its message, which says more, comes first
_INTRODUCE_WITHIN = 10.0  # seconds; whoever is silent for longer is a stranger
_MOST_UNKNOWN = 256  # connections that have not proven yet who they are, besides one for each process
_MOST = 1 << 24  # processes of a job
_NOTES = 3  # the most lines about strangers
_NOTE_AFTER, _NOTE_EVERY = 5.0, 60.0  # seconds


@dataclass(frozen=True)
class Rendezvous:
    """What each process of a job knows once all have met.

    Attributes:
        info: the info of this process, with the port at which they met.
        hosts: the host name of each process.
        connections: process 0's to all others; of another process, its own to process 0.
        bind: where JAX's service is to listen; empty but in process 0.
        nonce: a random text that only those who have met know.
    """

    info: ProcessInfo
    hosts: tuple[str, ...]
    connections: dict[int, Connection]
    bind: str
    nonce: str


def meet(info: ProcessInfo, timeout: float, lost_after: float = 100.0) -> Rendezvous:
    """Wait until all processes of the job have met.

    Args:
        info: the info of this process.
        timeout: seconds to wait.
        lost_after: seconds without an answer after which the machine of another process is lost.

    Raises:
        JoinError: processes are missing, or two do not fit together; the message names them.
    """
    if info.process:
        return _connect(info, timeout, lost_after)
    listening = listen(info)
    return _Coordinator(listening, timeout, lost_after).wait()


def _proof(info: ProcessInfo, side: str, *facts: Any) -> str:
    key = hashlib.sha256(f"{info.name}\0{info.secret}".encode()).digest()
    return hmac.new(key, "\0".join(map(str, (side, *facts))).encode(), "sha256").hexdigest()


def _digest(info: ProcessInfo) -> str:
    return hashlib.sha256(info.name.encode()).hexdigest()[:16]


@dataclass(eq=False)
class _Client:
    """A peer that has connected to process 0; it belongs to the job once it has proven that."""

    connection: Connection
    peer: str
    hello: Message = field(default_factory=dict)
    nonce: str = field(default_factory=lambda: secrets.token_hex(16))
    process: int | None = None


class _Coordinator:
    """Process 0, which waits for the others."""

    def __init__(self, listening: Listening, timeout: float, lost_after: float) -> None:
        self._listening, self._info = listening, listening.info
        self._timeout, self._lost_after = timeout, lost_after
        self._hosts: dict[int, str] = {0: socket.gethostname()}
        self._loopbacks: dict[int, str | None] = {0: own_loopback()}
        self._clients: dict[int, _Client] = {}
        self._unknown: list[_Client] = []
        self._refused: list[str] = []
        self._num_strangers = 0
        self._has_noted = False
        self._selector = selectors.DefaultSelector()

    def wait(self) -> Rendezvous:
        deadline = time.monotonic() + self._timeout
        nonce = secrets.token_hex(16)
        try:
            # The server is closed at the end of this block: JAX listens at the same address next.
            with self._listening.server as server, self._selector:
                self._selector.register(server, selectors.EVENT_READ)
                while len(self._hosts) < self._info.num_processes and time.monotonic() < deadline:
                    for key, _ in self._selector.select(_TRY_EVERY):
                        if key.fileobj is server:
                            self._accept(server)
                        else:
                            self._receive(key.data)
                    self._drop_silent()
                    self._note_if_only_here(deadline - self._timeout)
                self._check_all_here()
        except JoinError as error:
            self._broadcast({"problem": str(error)})
            for client in self._clients.values():
                client.connection.close()
            raise
        finally:
            for client in self._unknown:
                client.connection.close()
        hosts = tuple(self._hosts[process] for process in range(self._info.num_processes))
        self._broadcast({"hosts": hosts, "nonce": nonce})
        connections = {process: client.connection for process, client in self._clients.items()}
        return Rendezvous(self._info, hosts, connections, self._listening.bind, nonce)

    def _accept(self, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            accepted, peer = server.accept()
            client = _Client(Connection(accepted), str(peer[0]))
            self._unknown.append(client)
            self._selector.register(client.connection, selectors.EVENT_READ, client)
        if len(self._unknown) > _MOST_UNKNOWN + self._info.num_processes:
            self._drop(self._unknown[0], "too many at once")

    def _note_if_only_here(self, began: float) -> None:
        """Say once that other machines cannot come, if somebody is missing for long."""
        if self._listening.only_here and not self._has_noted and time.monotonic() - began > _NOTE_AFTER:
            self._has_noted = True
            print(f"waiting: {self._listening.only_here}", file=sys.stderr, flush=True)

    def _drop_silent(self) -> None:
        for client in [one for one in self._unknown if time.monotonic() - one.connection.opened > _INTRODUCE_WITHIN]:
            self._drop(client, "silent")

    def _drop(self, client: _Client, why: str) -> None:
        """Close the connection of a stranger, or of a process that has ended meanwhile and may come again."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(client.connection)
        client.connection.close()
        if client in self._unknown:
            self._unknown.remove(client)
            self._num_strangers += 1
            if self._num_strangers <= _NOTES:
                last = "; no more will be reported" if self._num_strangers == _NOTES else ""
                print(
                    f"ignored a connection from {client.peer} to {self._info.coordinator}: {why}{last}", file=sys.stderr
                )
        elif client.process is not None and self._clients.get(client.process) is client:
            for known in (self._hosts, self._loopbacks, self._clients):
                known.pop(client.process, None)

    def _receive(self, client: _Client) -> None:
        """Read what a client has sent."""
        try:
            for message in client.connection.read():
                if client not in self._unknown:
                    break
                if not client.hello:
                    self._challenge(client, message)
                else:
                    self._admit(client, message)
        except Disconnected as error:
            self._drop(client, str(error))

    def _challenge(self, client: _Client, hello: Message) -> None:
        numbers = [hello.get("process"), hello.get("num_processes")]
        texts = [hello.get("host"), hello.get("nonce"), hello.get("job")]
        if not all(type(number) is int and 0 <= number < _MOST for number in numbers) or not all(
            isinstance(text, str) for text in texts
        ):
            raise Disconnected("something that is not a message of the job")
        if hello["job"] != _digest(self._info):
            client.connection.send({"other_job": True})
            raise Disconnected("a process of another job")
        client.hello = hello
        client.connection.send(
            {"nonce": client.nonce, "proof": _proof(self._info, "host", hello["nonce"], client.nonce)}
        )

    def _admit(self, client: _Client, message: Message) -> None:
        process, num = client.hello["process"], client.hello["num_processes"]
        proof = _proof(self._info, "client", client.nonce, client.hello["nonce"], process, num)
        # Compared in constant time: the time taken must not tell a stranger how much of it is right.
        if not hmac.compare_digest(proof.encode(), str(message.get("proof")).encode()):
            client.connection.send({"other_job": True})
            raise Disconnected("another token")
        host = _shown(client.hello["host"])
        if num != self._info.num_processes or not 0 < process < num:
            self._refuse(
                client,
                f"processes disagree about how many they are: process {process} on {host} says {num}, process 0 on "
                f"{self._hosts[0]} says {self._info.num_processes}\n  {self._info.origin_text()}",
            )
        elif process in self._hosts:
            self._refuse(
                client,
                f"two processes say that they are process {process} of {num}: one on {self._hosts[process]} and one "
                f"on {host}\n  fix: give each another number",
            )
        else:
            self._unknown.remove(client)
            client.process = process
            client.connection.trust(self._lost_after)
            loopback = client.hello.get("loopback")
            self._hosts[process], self._clients[process] = host, client
            self._loopbacks[process] = _shown(loopback) if isinstance(loopback, str) else None

    def _refuse(self, client: _Client, why: str) -> None:
        """Refuse a process that contradicts the job; with a token it is surely one of ours, so the job fails."""
        client.connection.send({"problem": why})
        if self._info.secret:
            raise JoinError(why)
        self._refused = [*self._refused, why][-_NOTES:]
        self._drop(client, why.partition("\n")[0])

    def _check_all_here(self) -> None:
        missing = [str(process) for process in range(self._info.num_processes) if process not in self._hosts]
        if missing:
            only_here = f"\n  {self._listening.only_here}" if self._listening.only_here else ""
            refused = "".join(f"\n  refused: {why.partition(chr(10))[0]}" for why in self._refused)
            raise JoinError(
                f"{len(missing)} of {self._info.num_processes} processes did not come to {self._info.coordinator} "
                f"within {self._timeout:g} s of process 0\n  missing: process {', '.join(missing)}{refused}{only_here}"
                "\n  fix: check whether they were started, failed before outlay.join(), or cannot reach that "
                "address; or wait longer: outlay.join(timeout=...)"
            )
        wrong = {process: address for process, address in self._loopbacks.items() if address}
        if wrong and len(set(self._hosts.values())) > 1:
            text = ", ".join(f"{self._hosts[process]} for itself: {address}" for process, address in wrong.items())
            if os.environ.get("JAX_PLATFORMS", "").lower().split(",")[0] == "cpu":
                raise JoinError(
                    f"CPU devices of processes on several machines connect to the address of each machine's own name, "
                    f"and here no other machine can reach it\n  {text}\n  {LOOPBACK_FIX}"
                )

    def _broadcast(self, message: Message) -> None:
        for client in self._clients.values():
            client.connection.send(message)


def _shown(text: str) -> str:
    """Return the name of another machine, fit to be printed."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:255])


class _NotYet(Exception):
    """Process 0 does not listen yet, or somebody else does."""


def _connect(info: ProcessInfo, timeout: float, lost_after: float) -> Rendezvous:
    deadline, noted_at = time.monotonic() + timeout, time.monotonic() - _NOTE_EVERY + _NOTE_AFTER
    while True:
        reasons: list[_NotYet] = []
        for way in info.candidates():
            try:
                return _connect_at(way, deadline, timeout, lost_after)
            except _NotYet as no:
                reasons.append(no)
        refused = ConnectionRefusedError  # the least telling: at most ports there is nobody
        reason = next((no for no in reasons if not isinstance(no.__cause__, refused)), reasons[0])
        now = time.monotonic()
        if now + _TRY_EVERY > deadline:
            raise JoinError(_unreachable(info, reason, timeout)) from None
        if now - noted_at > _NOTE_EVERY:
            noted_at = now
            print(f"waiting: {_unreachable(info, reason, timeout - (deadline - now))}", file=sys.stderr, flush=True)
        time.sleep(_TRY_EVERY)


def _connect_at(info: ProcessInfo, deadline: float, timeout: float, lost_after: float) -> Rendezvous:
    left = max(deadline - time.monotonic(), _TRY_EVERY)
    try:
        connection = Connection(socket.create_connection(info.address, timeout=min(left, _CONNECT_WITHIN)))
    except OSError as error:
        raise _NotYet(error.strerror or str(error)) from error
    try:
        reply = _introduce(connection, info)
        connection.trust(lost_after)
        reply = reply or connection.wait_for(deadline + _SLACK)
    except Disconnected:
        connection.close()
        raise JoinError(
            f"process 0 at {info.coordinator} has gone while process {info.process} of {info.num_processes} waited "
            "for the others there"
        ) from None
    except BaseException:
        connection.close()
        raise
    if reply is None or "problem" in reply:
        connection.close()
    if reply is None:
        raise JoinError(
            f"process {info.process} waited {timeout:g} s at {info.coordinator} for the others, which did not come"
        )
    if "problem" in reply:
        raise JoinError(str(reply["problem"]))
    return Rendezvous(info, tuple(map(_shown, reply["hosts"])), {0: connection}, "", str(reply["nonce"]))


def _introduce(connection: Connection, info: ProcessInfo) -> Message | None:
    """Prove that this process belongs to the job, and check that the other one does."""
    own_nonce = secrets.token_hex(16)
    hello = {"process": info.process, "num_processes": info.num_processes, "host": socket.gethostname()}
    connection.send(hello | {"job": _digest(info), "nonce": own_nonce, "loopback": own_loopback()})
    try:
        answer = connection.wait_for(time.monotonic() + _INTRODUCE_WITHIN)
    except Disconnected as error:
        raise _NotYet("something else answers there") from error
    if answer is None or answer.get("other_job"):
        raise _NotYet("another job is there" if answer else "the program there does not answer")
    host_nonce = str(answer.get("nonce"))
    if not hmac.compare_digest(str(answer.get("proof")).encode(), _proof(info, "host", own_nonce, host_nonce).encode()):
        raise _NotYet("the program there has another token (OUTLAY_TOKEN), or none")
    connection.send({"proof": _proof(info, "client", host_nonce, own_nonce, info.process, info.num_processes)})
    return None


def _unreachable(info: ProcessInfo, no: _NotYet, seconds: float) -> str:
    name, error = f"process {info.process} of {info.num_processes}", no.__cause__
    if isinstance(error, socket.gaierror):  # tried until now, since in a cluster names may come after the processes
        return (
            f"{name} could not find the host {info.address[0]!r} of process 0 for {seconds:.3g} s: {no}"
            f"\n  {info.origin_text()}"
            "\n  fix: a name that this machine can resolve (getent hosts NAME), or the address in numbers"
        )
    only_here = ""
    if info.address[0].startswith("127.") or info.address[0] in ("localhost", "::1"):
        only_here = f"\n  {info.address[0]} is this machine, {socket.gethostname()}: from others it cannot be reached"
    return (
        f"{name} could not reach process 0 at {info.coordinator} for {seconds:.3g} s: {no}\n  {info.origin_text()}"
        f"{only_here}\n  fix: see whether process 0 was started there, or has failed before outlay.join(), and "
        "whether its host and port can be reached from here"
    )
