"""What this process knows about its job, once it has joined."""

from __future__ import annotations

from dataclasses import dataclass, field

PATIENCE = 300.0
"""Seconds that processes wait for each other unless told otherwise; the nodes of a cluster do not start together."""


@dataclass(frozen=True)
class Joined:
    """A process that has joined its job.

    Attributes:
        process: which process this is, from 0.
        num_processes: how many there are.
        coordinator: `host:port` where they met; empty for a process that is alone.
        hosts: the name of the host of each process.
        restart: how often the job was started again before.
        origin: where process, number and coordinator came from, such as the name of a variable.
        timeout: seconds that processes wait for each other where they should come at the same time.
    """

    process: int = 0
    num_processes: int = 1
    coordinator: str = ""
    hosts: tuple[str, ...] = ()
    restart: int = 0
    origin: dict[str, str] = field(default_factory=dict)
    timeout: float = PATIENCE


_joined: Joined | None = None


def joined() -> Joined | None:
    """The job of this process; None before `outlay.join()`."""
    return _joined


def remember(joined: Joined) -> None:
    """Keep what this process knows about its job."""
    global _joined
    _joined = joined


def host_number(process: int) -> int | None:
    """The host of a process as a number, from 0 in the order of processes; None where hosts were not exchanged."""
    if _joined is None or process >= len(_joined.hosts):
        return None
    return sorted(set(_joined.hosts), key=_joined.hosts.index).index(_joined.hosts[process])
