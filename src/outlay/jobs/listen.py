"""Where process 0 listens: at the coordinator's own address, so that other networks of the machine do not reach it."""

from __future__ import annotations

import errno
import os
import socket
from dataclasses import dataclass

from outlay.core.error_types import JoinError
from outlay.jobs.place_in_job import Place

BIND = "JAX_COORDINATOR_BIND_ADDRESS"
"""JAX's own variable: `host:port` to listen at instead, such as `0.0.0.0:7000` where an address is forwarded."""

LOOPBACK_FIX = (
    "fix: in /etc/hosts of each, the machine's address in the network in front of its name, instead of 127.0.1.1 or "
    "127.0.0.1"
)


@dataclass(frozen=True)
class Listening:
    """Process 0 at its address.

    Attributes:
        server: where the others come.
        place: with the port that it has.
        bind: where JAX is to listen afterwards, as `host:port`.
    """

    server: socket.socket
    place: Place
    bind: str


def listen(place: Place) -> Listening:
    """Listen at the coordinator's address, at the first of its ports that is free.

    Raises:
        JoinError: the address is not of this machine, nothing is known by its name, or the port is taken.
    """
    hosts = _hosts(place)
    problem: OSError | None = None
    for way in place.ways():
        for host in hosts:
            try:
                server = _serve(host, way.address[1], place.num_processes)
            except OSError as error:
                if problem is None or problem.errno != errno.EADDRINUSE:
                    problem = error
                continue
            shown = f"[{host}]" if ":" in host else host or "[::]"
            return Listening(server, way, f"{shown}:{way.address[1]}")
    if problem and problem.errno == errno.EADDRNOTAVAIL:
        raise JoinError(
            f"process 0 is on {socket.gethostname()}, and {place.coordinator} is not an address of it "
            f"({', '.join(hosts)})\n  {place.origin_text()}\n  fix: start process 0 there, or give the address of "
            f"this machine; where that address is forwarded to here: {BIND}=0.0.0.0:{place.address[1]}"
        )
    raise JoinError(
        f"process 0 cannot listen at {place.coordinator}: {problem.strerror if problem else 'no address'}"
        f"\n  {place.origin_text()}\n  fix: another port"
    ) from problem


def own_loopback() -> str | None:
    """The address that this machine has for its own name, if it is one that no other machine reaches."""
    addresses = _addresses(socket.gethostname())
    return addresses[0] if addresses and all(map(_is_loopback, addresses)) else None


def _hosts(place: Place) -> list[str]:
    """What to listen at, in the order in which it is tried; empty stands for all of the machine."""
    host = place.address[0]
    if given := os.environ.get(BIND):
        host = given.rpartition(":")[0].strip("[]")
        return ["" if host in ("0.0.0.0", "::", "") else host]
    if host == "localhost" or _is_loopback(host):
        return ["127.0.0.1" if host == "localhost" else host]
    addresses = _addresses(host)
    in_pod = "KUBERNETES_SERVICE_HOST" in os.environ  # where names come later, and may stand for a service in front
    if not addresses and not in_pod:
        raise JoinError(
            f"process 0 does not find the host {host!r}, at which it is to wait for the others"
            f"\n  {place.origin_text()}"
            f"\n  fix: a name of this machine, {socket.gethostname()}, or its address in numbers"
        )
    if not addresses or all(
        map(_is_loopback, addresses)
    ):  # as Debian has it for its own name; others come from outside
        return [""]
    return [*addresses, *([""] if in_pod else [])]


def _addresses(host: str) -> list[str]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(str(one[4][0]) for one in found))


def _is_loopback(host: str) -> bool:
    return host.startswith("127.") or host == "::1"


def _serve(host: str, port: int, num: int) -> socket.socket:
    if not host and socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, backlog=num, dualstack_ipv6=True)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=max(num, 16))
