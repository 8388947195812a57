"""A process's place in its job, as whatever started it tells: which process it is, of how many, and where they meet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from outlay.core.error_types import JoinError


@dataclass(frozen=True)
class Place:
    """A place in a job.

    Attributes:
        process: which process this is, from 0.
        num_processes: how many there are.
        coordinator: `host:port` of process 0.
        local_process: which of the processes on this machine this is, where known.
        num_local_processes: how many processes are on this machine, where known.
        origin: where process, number and coordinator came from.
        job: what tells this job from others, as far as its processes know by themselves; else it is the coordinator.
        secret: what nobody but the job's processes knows; empty where nobody has given one.
        other_ports: where process 0 may be instead, if somebody else has the coordinator's port.
    """

    process: int
    num_processes: int
    coordinator: str
    local_process: int | None = None
    num_local_processes: int | None = None
    origin: dict[str, str] = field(default_factory=dict)
    job: str = ""
    secret: str = field(default="", repr=False)
    other_ports: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.num_processes < 1 or not 0 <= self.process < self.num_processes:
            raise JoinError(
                f"process {self.process} of {self.num_processes} cannot be: processes are counted from 0"
                f"\n  {self.origin_text()}"
            )
        host, _, port = self.coordinator.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise JoinError(f"the coordinator {self.coordinator!r} is not host:port\n  {self.origin_text()}")

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the coordinator."""
        host, _, port = self.coordinator.rpartition(":")
        return host.strip("[]"), int(port)

    @property
    def name(self) -> str:
        """What tells the job from all others."""
        return self.job or self.coordinator

    def ways(self) -> list[Place]:
        """This place with each of the ports at which process 0 may be."""
        host = self.coordinator.rpartition(":")[0]
        others = [replace(self, coordinator=f"{host}:{port}", job=self.name) for port in self.other_ports]
        return [self, *others]

    def origin_text(self) -> str:
        """Where each value came from."""
        return ", ".join(f"{what} from {where}" for what, where in self.origin.items())


def need(environment: Mapping[str, str], names: Mapping[str, str], started_by: str, fix: str) -> None:
    """Check that all variables of a kind are set.

    Args:
        environment: the variables.
        names: what must be set, and what it says.
        started_by: whose variables they are.
        fix: what to do where some are missing.

    Raises:
        JoinError: some are missing; all are listed.
    """
    missing = [name for name in names if not environment.get(name)]
    if missing:
        there = [f"{name}={environment[name]}" for name in names if environment.get(name)]
        absent = [f"{name} ({names[name]})" for name in missing]
        raise JoinError(
            f"the variables of {started_by} are set by half, so this process's place in the job is not known"
            f"\n  there: {', '.join(there)}\n  missing: {', '.join(absent)}\n  fix: {fix}"
        )


def number(environment: Mapping[str, str], name: str) -> int:
    """A variable as a number.

    Raises:
        JoinError: it is none.
    """
    try:
        return int(environment[name])
    except ValueError:
        raise JoinError(f"{name}={environment[name]!r} is not a number") from None
