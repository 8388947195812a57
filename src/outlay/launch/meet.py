"""All processes of a job meet before JAX connects them, and tell each other their hosts.

JAX ends a process with an abort where another one is missing. Here process 0 listens for a moment at the address that
JAX will use, the others come to it, and whoever is missing is named in an exception, in every process that did come.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import time
from dataclasses import dataclass, field
from typing import Any

from outlay.core.errors import JoinError
from outlay.launch.place_in_job import Place

_TRY_EVERY = 0.1  # seconds
_SLACK = 5.0  # seconds that the others wait longer than process 0, which knows more
_LONGEST = 1 << 20  # bytes of a message, so that a stranger cannot fill the memory


def meet(place: Place, timeout: float) -> tuple[str, ...]:
    """Wait for all processes; returns the host of each, by process.

    Args:
        place: this process's place.
        timeout: seconds to wait.

    Raises:
        JoinError: processes are missing, or two do not fit together; the message names them.
    """
    return _Host(place, timeout).wait() if place.process == 0 else _visit(place, timeout)


def _hello(place: Place) -> dict[str, Any]:
    return {"process": place.process, "num_processes": place.num_processes, "host": socket.gethostname()}


@dataclass
class _Guest:
    """A process at process 0: what it has sent so far, and where it is."""

    connection: socket.socket
    received: bytes = b""


@dataclass
class _Host:
    """Process 0, which waits for the others."""

    place: Place
    timeout: float
    _hosts: dict[int, str] = field(default_factory=dict)
    _guests: dict[int, socket.socket] = field(default_factory=dict)

    def wait(self) -> tuple[str, ...]:
        with contextlib.ExitStack() as stack:
            selector = stack.enter_context(selectors.DefaultSelector())
            server = stack.enter_context(self._listen())
            selector.register(server, selectors.EVENT_READ)
            self._hosts[0] = socket.gethostname()
            deadline = time.monotonic() + self.timeout
            try:
                while len(self._hosts) < self.place.num_processes and time.monotonic() < deadline:
                    for key, _ in selector.select(_TRY_EVERY):
                        if key.fileobj is server:
                            connection, _ = server.accept()
                            stack.enter_context(connection)
                            connection.setblocking(False)
                            selector.register(connection, selectors.EVENT_READ, _Guest(connection))
                        elif self._hear(key.data):
                            selector.unregister(key.fileobj)
                self._check_all_here()
            except JoinError as error:
                self._tell({"problem": str(error)})
                raise
            hosts = tuple(self._hosts[process] for process in range(self.place.num_processes))
            self._tell({"hosts": hosts})
            self._see_off()
        return hosts

    def _listen(self) -> socket.socket:
        host, port = self.place.address
        only_here = host == "localhost" or host.startswith("127.")
        try:
            return socket.create_server(("127.0.0.1" if only_here else "", port), backlog=self.place.num_processes)
        except OSError as error:
            raise JoinError(
                f"process 0 cannot listen at {self.place.coordinator}: {error.strerror}"
                f"\n  {self.place.origin_text()}\n  cure: another port"
            ) from error

    def _hear(self, guest: _Guest) -> bool:
        """Take what a guest has sent; returns whether there is no more to wait for from it."""
        try:
            piece = guest.connection.recv(_LONGEST)
        except ConnectionError:
            piece = b""
        guest.received += piece
        if not piece or len(guest.received) > _LONGEST:  # it has gone, and may come again; or it is a stranger
            guest.connection.close()
            return True
        if not guest.received.endswith(b"\n"):
            return False
        try:
            hello = json.loads(guest.received)
            process, num, host = int(hello["process"]), int(hello["num_processes"]), str(hello["host"])
        except (ValueError, KeyError, TypeError):
            guest.connection.close()
            return True
        if num != self.place.num_processes or not 0 < process < num:
            self._guests[process] = guest.connection
            raise JoinError(
                f"processes disagree about their number: process {process} on {host} says {num}, process 0 on "
                f"{self._hosts[0]} says {self.place.num_processes}\n  {self.place.origin_text()}"
            )
        if process in self._hosts:
            before = self._hosts[process]
            self._guests[num] = guest.connection  # any free number: to be told
            raise JoinError(
                f"two processes say that they are process {process} of {num}: one on {before} and one on {host}"
                "\n  cure: give each another number"
            )
        self._hosts[process], self._guests[process] = host, guest.connection
        return True

    def _check_all_here(self) -> None:
        missing = [str(process) for process in range(self.place.num_processes) if process not in self._hosts]
        if missing:
            raise JoinError(
                f"{len(missing)} of {self.place.num_processes} processes have not come to {self.place.coordinator} "
                f"within {self.timeout:g} s of process 0\n  missing: process {', '.join(missing)}"
                "\n  cure: see whether they were started, have failed before outlay.join(), or cannot reach that "
                "address; or wait longer: outlay.join(timeout=...)"
            )

    def _tell(self, message: dict[str, Any]) -> None:
        for guest in self._guests.values():
            guest.settimeout(_SLACK)
            with contextlib.suppress(OSError):
                guest.sendall(json.dumps(message).encode() + b"\n")

    def _see_off(self) -> None:
        """Let the others hang up first: who does so holds the port for a while, and JAX needs it here."""
        for guest in self._guests.values():
            guest.settimeout(1.0)
            with contextlib.suppress(OSError):
                guest.recv(1)


def _visit(place: Place, timeout: float) -> tuple[str, ...]:
    deadline = time.monotonic() + timeout
    with _connect(place, deadline, timeout) as connection:
        connection.settimeout(max(deadline - time.monotonic(), 0) + _SLACK)
        try:
            connection.sendall(json.dumps(_hello(place)).encode() + b"\n")
            answer = connection.makefile("rb").readline(_LONGEST)
            reply = json.loads(answer) if answer else {}
        except TimeoutError:
            raise JoinError(
                f"process {place.process} has waited {timeout:g} s at {place.coordinator} for the other processes"
            ) from None
        except (OSError, ValueError):
            reply = {}
    if "problem" in reply:
        raise JoinError(reply["problem"])
    if "hosts" not in reply:
        raise JoinError(
            f"process 0 at {place.coordinator} has gone while process {place.process} of {place.num_processes} waited "
            "for the others there; or something else answers at that address"
        )
    return tuple(reply["hosts"])


def _connect(place: Place, deadline: float, timeout: float) -> socket.socket:
    while True:
        try:
            return socket.create_connection(place.address, timeout=max(deadline - time.monotonic(), _TRY_EVERY))
        except OSError as error:
            if time.monotonic() + _TRY_EVERY > deadline:
                raise JoinError(_unreachable(place, error, timeout)) from None
            time.sleep(_TRY_EVERY)


def _unreachable(place: Place, error: OSError, timeout: float) -> str:
    who, why = f"process {place.process} of {place.num_processes}", error.strerror or error
    if isinstance(error, socket.gaierror):  # tried until now, since in a cluster names may come after the processes
        return (
            f"{who} could not find the host {place.address[0]!r} of process 0 for {timeout:g} s: {why}"
            f"\n  {place.origin_text()}"
            "\n  cure: a name that this machine can resolve (getent hosts NAME), or the address in numbers"
        )
    return (
        f"{who} could not reach process 0 at {place.coordinator} for {timeout:g} s: {why}\n  {place.origin_text()}"
        "\n  cure: see whether process 0 was started there, or has failed before outlay.join(), and whether its host "
        "and port can be reached from here"
    )
