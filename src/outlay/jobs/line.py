"""A line between two processes of a job: small messages, each a line of JSON, from somebody who may be a stranger."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
import time
from typing import Any

Message = dict[str, Any]

LONGEST = 4096
"""Bytes of a message of somebody who has not shown yet that it belongs to the job."""

_LONGEST_OF_OURS = 1 << 20
_SEND_WITHIN = 2.0  # seconds


class Hung(ConnectionError):
    """The other one has hung up, is lost, or has sent what nobody who belongs to the job would send."""


class Line:
    """One end of a line.

    Args:
        connection: to the other end.

    Attributes:
        longest: bytes of a message that are taken.
        opened: when it was opened, by the monotonic clock.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._received = b""
        self._lock = threading.Lock()
        self.longest = LONGEST
        self.opened = time.monotonic()
        connection.setblocking(False)
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def fileno(self) -> int:
        """For a selector; -1 once it is closed."""
        return self._connection.fileno()

    def trust(self, lost_after: float) -> None:
        """The other end belongs to the job: it may send more, and is lost when its machine is silent for so long."""
        self.longest = _LONGEST_OF_OURS
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; a process that is held is not lost: its machine answers
            milliseconds = max(1, round(1000 * lost_after))
            self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)

    def send(self, message: Message) -> bool:
        """Send a message, if the other end takes it; never raises."""
        data, deadline = json.dumps(message).encode() + b"\n", time.monotonic() + _SEND_WITHIN
        with self._lock, contextlib.suppress(OSError):
            while data and time.monotonic() < deadline:
                try:
                    data = data[self._connection.send(data) :]
                except BlockingIOError:
                    self._wait(select.POLLOUT, deadline)
        return not data

    def read(self) -> list[Message]:
        """The messages that are complete, waiting for none.

        Raises:
            Hung: there will be no more.
        """
        gone: Hung | None = None
        try:
            while piece := self._receive():
                self._received += piece
            gone = Hung("hung up") if piece is not None else None
        except Hung as error:
            gone = error
        *lines, self._received = self._received.split(b"\n")
        if gone and not lines:  # where there are, they are its last words, and the next call raises
            raise gone
        return [_message(line) for line in lines]

    def wait_for(self, deadline: float) -> Message | None:
        """The next message; None where it has not come in time.

        Raises:
            Hung: there will be none.
        """
        while b"\n" not in self._received:
            piece = self._receive()
            if piece is None and time.monotonic() >= deadline:
                return None
            if piece is None:
                self._wait(select.POLLIN, deadline)
            elif not piece:
                raise Hung("hung up")
            else:
                self._received += piece
        line, _, self._received = self._received.partition(b"\n")
        return _message(line)

    def _receive(self) -> bytes | None:
        """What has come: nothing at its end, None where nothing has come yet."""
        if len(self._received) > self.longest:
            raise Hung("a message of more bytes than any of ours")
        try:
            return self._connection.recv(self.longest)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            raise Hung(error.strerror or "hung up") from error

    def _wait(self, event: int, deadline: float) -> None:
        poll = select.poll()
        poll.register(self._connection, event)
        poll.poll(max(1000 * (deadline - time.monotonic()), 1))

    def close(self) -> None:
        """Hang up."""
        with contextlib.suppress(OSError):
            self._connection.close()


def _message(line: bytes) -> Message:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Hung("what is no message") from error
    if not isinstance(found, dict):
        raise Hung("what is no message")
    return found
