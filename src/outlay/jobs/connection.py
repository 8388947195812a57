"""How two processes of a job connect: where process 0 listens, and small messages, each one line of JSON.

Whoever connects may be a stranger, until it has shown that it belongs to the job.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import socket
import threading
import time
from dataclasses import dataclass
from typing import Any

from outlay.core.error_types import JoinError
from outlay.jobs.process_info import ProcessInfo

Message = dict[str, Any]

LONGEST = 4096
"""Bytes of a message from a process that has not proven yet that it belongs to the job."""

_LONGEST_OF_OURS = 1 << 20
_SEND_WITHIN = 2.0  # seconds


class Disconnected(ConnectionError):
    """The peer disconnected or sent an invalid message."""


class Connection:
    """One end of a connection, which sends and receives messages.

    Args:
        connection: to the other end.

    Attributes:
        longest: bytes of a message that are accepted.
        opened: when it was opened, by the monotonic clock.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._received = b""
        self._lock = threading.Lock()
        self.longest = LONGEST
        self.opened = time.monotonic()
        # If the process at the other end does not read, this one must not block.
        connection.setblocking(False)
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def fileno(self) -> int:
        """Return the file descriptor, for a selector; -1 once it is closed."""
        return self._connection.fileno()

    def trust(self, lost_after: float) -> None:
        """Accept longer messages, since the other end has proven to belong to the job; set when its machine is lost."""
        self.longest = _LONGEST_OF_OURS
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; a process that is held is not lost: its machine answers
            milliseconds = max(1, round(1000 * lost_after))
            self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)

    def send(self, message: Message) -> bool:
        """Send a message; return whether the other end took it. Never raises."""
        data, deadline = json.dumps(message).encode() + b"\n", time.monotonic() + _SEND_WITHIN
        # The thread that watches and the program itself both send.
        with self._lock, contextlib.suppress(OSError):
            while data and time.monotonic() < deadline:
                try:
                    data = data[self._connection.send(data) :]
                except BlockingIOError:
                    self._wait(select.POLLOUT, deadline)
        return not data

    def read(self) -> list[Message]:
        """Return the messages that are complete, without waiting.

        Raises:
            Disconnected: there will be no more.
        """
        disconnected: Disconnected | None = None
        try:
            while piece := self._receive():
                self._received += piece
            disconnected = Disconnected("hung up") if piece is not None else None
        except Disconnected as error:
            disconnected = error
        *lines, self._received = self._received.split(b"\n")
        if disconnected and not lines:  # where there are, they are its last words, and the next call raises
            raise disconnected
        return [_message(line) for line in lines]

    def wait_for(self, deadline: float) -> Message | None:
        """Return the next message; None if it has not come in time.

        Raises:
            Disconnected: there will be none.
        """
        while b"\n" not in self._received:
            piece = self._receive()
            if piece is None and time.monotonic() >= deadline:
                return None
            if piece is None:
                self._wait(select.POLLIN, deadline)
            elif not piece:
                raise Disconnected("hung up")
            else:
                self._received += piece
        line, _, self._received = self._received.partition(b"\n")
        return _message(line)

    def _receive(self) -> bytes | None:
        """Return what has come: b"" at the end, None where nothing has come yet."""
        if len(self._received) > self.longest:
            raise Disconnected("a message longer than any of the job's")
        try:
            return self._connection.recv(self.longest)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            raise Disconnected(error.strerror or "hung up") from error

    def _wait(self, event: int, deadline: float) -> None:
        poll = select.poll()
        poll.register(self._connection, event)
        poll.poll(max(1000 * (deadline - time.monotonic()), 1))

    def close(self) -> None:
        """Close it."""
        with contextlib.suppress(OSError):
            self._connection.close()


def _message(line: bytes) -> Message:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Disconnected("what is not a message") from error
    if not isinstance(message, dict):
        raise Disconnected("what is not a message")
    return message


BIND = "JAX_COORDINATOR_BIND_ADDRESS"
"""JAX's own variable: `host:port` to listen at instead, such as `0.0.0.0:7000` where an address is forwarded."""

LOOPBACK_FIX = (
    "fix: in /etc/hosts of each machine, put its address in the network in front of its name, in place of 127.0.1.1 or "
    "127.0.0.1"
)


@dataclass(frozen=True)
class Listening:
    """The server socket of process 0.

    Attributes:
        server: where the others connect.
        info: the info of this process, with the port that was free.
        bind: where JAX is to listen afterwards, as `host:port`.
        only_here: why no other machine can connect; empty if others can.
    """

    server: socket.socket
    info: ProcessInfo
    bind: str
    only_here: str = ""


def listen(info: ProcessInfo) -> Listening:
    """Listen at the coordinator's address, at the first of its ports that is free.

    Raises:
        JoinError: the address does not belong to this machine, its name is unknown, or the port is in use.
    """
    hosts = _hosts(info)
    problem: OSError | None = None
    for way in info.candidates():
        for host in hosts:
            try:
                server = _serve(host, way.address[1], info.num_processes)
            except OSError as error:
                if problem is None or problem.errno != errno.EADDRINUSE:
                    problem = error
                continue
            shown = f"[{host}]" if ":" in host else host or "[::]"
            return Listening(server, way, f"{shown}:{way.address[1]}", _why_only_here(way.address[0], host))
    if problem and problem.errno == errno.EADDRNOTAVAIL:
        raise JoinError(
            f"process 0 runs on {socket.gethostname()}, and {info.coordinator} is not an address of that machine "
            f"({', '.join(hosts)})\n  {info.origin_text()}\n  fix: start process 0 there, or give the address of "
            f"this machine; if that address is forwarded to this one, set {BIND}=0.0.0.0:{info.address[1]}"
        )
    raise JoinError(
        f"process 0 cannot listen at {info.coordinator}: {problem.strerror if problem else 'no address'}"
        f"\n  {info.origin_text()}\n  fix: choose another port"
    ) from problem


def own_loopback() -> str | None:
    """Return the address of this machine's own name, if it is a loopback that no other machine reaches."""
    addresses = _addresses(socket.gethostname())
    return addresses[0] if addresses and all(map(_is_loopback, addresses)) else None


def _hosts(info: ProcessInfo) -> list[str]:
    """Return the addresses to listen at, in the order in which they are tried; "" is every address of the machine."""
    host = info.address[0]
    if given := os.environ.get(BIND):
        host = given.rpartition(":")[0].strip("[]")
        return ["" if host in ("0.0.0.0", "::", "") else host]
    if host == "localhost" or _is_loopback(host):
        return ["127.0.0.1" if host == "localhost" else host]
    addresses = _addresses(host)
    in_pod = "KUBERNETES_SERVICE_HOST" in os.environ  # names appear late there, and may belong to a service in front
    if not addresses and not in_pod:
        raise JoinError(
            f"process 0 cannot resolve the host {host!r}, at which it is to wait for the others"
            f"\n  {info.origin_text()}"
            f"\n  fix: give a name of this machine, {socket.gethostname()}, or its numeric address"
        )
    if not addresses:
        return [""]
    return [*addresses, *([""] if in_pod else [])]


def _why_only_here(name: str, host: str) -> str:
    """Say why processes on other machines cannot connect, where a name is this machine's alone, as Debian has it."""
    if not _is_loopback(host) or name == "localhost" or _is_loopback(name):
        return ""
    return (
        f"process 0 listens at {host} alone, since that is {name} on its machine: no other machine can connect"
        f"\n  {LOOPBACK_FIX}; or set {BIND}=0.0.0.0:PORT for process 0"
    )


def _addresses(host: str) -> list[str]:
    try:
        addresses = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(str(one[4][0]) for one in addresses))


def _is_loopback(host: str) -> bool:
    return host.startswith("127.") or host == "::1"


def _serve(host: str, port: int, num: int) -> socket.socket:
    if not host and socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, backlog=num, dualstack_ipv6=True)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=max(num, 16))
