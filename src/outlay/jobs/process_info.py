"""The identity of this process in its job: its rank, the number of processes, and the coordinator's address.

Whatever started the processes tells it in environment variables: `outlay launch`, SLURM, Open MPI or a Kubernetes Job.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from outlay.core.error_types import JoinError

# The variables by which `outlay launch` tells a process what it is in the job, and a few that users set.
PROCESS_ID = "OUTLAY_PROCESS_ID"
NUM_PROCESSES = "OUTLAY_NUM_PROCESSES"
COORDINATOR = "OUTLAY_COORDINATOR"  # host:port
DEVICES_PER_PROCESS = "OUTLAY_DEVICES_PER_PROCESS"  # simulated; not set where attached devices are used
JOB_DIR = "OUTLAY_JOB_DIR"
RESTART = "OUTLAY_RESTART"  # 0 the first time
TOKEN = "OUTLAY_TOKEN"  # known to the processes of the job only; may be set by whoever starts them
STUCK_AFTER = "OUTLAY_STUCK_AFTER"  # seconds, or "off": as --stuck-after, where there is no launcher
LOST_AFTER = "OUTLAY_LOST_AFTER"  # seconds without an answer after which a machine is lost
JOINED = "_OUTLAY_JOINED"  # the process that has joined with this rank; its children inherit the variable, not the rank
IN_ORDER = "OUTLAY_IN_ORDER"  # set where a process is to mark in its output where a step ends


@dataclass(frozen=True)
class ProcessInfo:
    """One process of a job.

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
                f"there is no process {self.process} of {self.num_processes}: processes are counted from 0"
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
        """The name that tells the job from all others."""
        return self.job or self.coordinator

    def candidates(self) -> list[ProcessInfo]:
        """Return this with each of the ports at which process 0 may be, the likeliest first."""
        host = self.coordinator.rpartition(":")[0]
        others = [replace(self, coordinator=f"{host}:{port}", job=self.name) for port in self.other_ports]
        return [self, *others]

    def origin_text(self) -> str:
        """Return where each value came from, in words."""
        return origin_text(self.origin)


def origin_text(origin: Mapping[str, str]) -> str:
    """Write where values came from, such as the names of variables."""
    return ", ".join(f"{what} from {where}" for what, where in origin.items())


def is_launched() -> bool:
    """Return whether `outlay launch` or `outlay run --processes` started this process."""
    return NUM_PROCESSES in os.environ


def _check_set(environment: Mapping[str, str], names: Mapping[str, str], started_by: str, fix: str) -> None:
    """Raise JoinError if some variables of a kind are set and others are not.

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
        given = [f"{name}={environment[name]}" for name in names if environment.get(name)]
        absent = [f"{name} ({names[name]})" for name in missing]
        raise JoinError(
            f"only some variables of {started_by} are set, so the rank of this process in the job is unknown"
            f"\n  set: {', '.join(given)}\n  missing: {', '.join(absent)}\n  fix: {fix}"
        )


def _number(environment: Mapping[str, str], name: str) -> int:
    """Return a variable as a number.

    Raises:
        JoinError: it is not one.
    """
    try:
        return int(environment[name])
    except ValueError:
        raise JoinError(f"{name}={environment[name]!r} is not a number") from None


Environment = Mapping[str, str]

_ALONE = "to run alone: outlay.join(num_processes=1)"
# Above the ports that systems hand out for connections: one that is chosen now is usually still free when it is used.
PORTS = range(61440, 65536)
NUM_TRIES = 8
_POD = "JOB_COMPLETION_INDEX"
_SLURM = {
    "SLURM_PROCID": "which process this is",
    "SLURM_STEP_NUM_TASKS": "how many there are",
    "SLURM_STEP_NODELIST": "the nodes, the first of which has process 0",
    "SLURM_JOB_ID": "the job, from which and from its step the port is computed",
}
_OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "which process this is",
    "OMPI_COMM_WORLD_SIZE": "how many there are",
    "OMPI_COMM_WORLD_LOCAL_RANK": "which of those on this machine",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "how many are on this machine",
}
_BY_OUTLAY = {
    PROCESS_ID: "which process this is",
    NUM_PROCESSES: "how many there are",
    COORDINATOR: "host:port of process 0",
}
# srun sets these in every process; SLURM_PROCID, for whatever reason, is set in a batch script outside of srun too.
_BY_SLURM = ("SLURM_STEP_ID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")

SIGNS_OF_A_JOB = frozenset([*_BY_OUTLAY, *_BY_SLURM, *_OPEN_MPI])
"""Variables of which at least one is set in a process of a job."""


def read_process_info(environment: Environment) -> ProcessInfo | None:
    """Return which process this is; None where nobody has started several processes.

    Raises:
        JoinError: variables are missing, or their values cannot be right.
    """
    for find in (_from_outlay, _from_slurm, _from_open_mpi):
        if info := find(environment):
            return info
    return None


def _from_outlay(environment: Environment) -> ProcessInfo | None:
    own = dict(_BY_OUTLAY)
    if not any(name in environment for name in own) or _is_numbered_by_others(environment):
        return None
    # In the pods of an Indexed Job, Kubernetes counts; the rest is the same in all pods and stands in the Job.
    process = _POD if _POD in environment and PROCESS_ID not in environment else PROCESS_ID
    names = {process: own.pop(PROCESS_ID), **own}
    _check_set(
        environment, names, "Outlay", f"set them all, or start with: outlay launch -n 2 -- python train.py; {_ALONE}"
    )
    return ProcessInfo(
        _number(environment, process),
        _number(environment, NUM_PROCESSES),
        environment[COORDINATOR],
        origin={
            "process": process,
            "number of processes": NUM_PROCESSES,
            "coordinator": COORDINATOR,
        },
        secret=environment.get(TOKEN, ""),
    )


def _is_numbered_by_others(environment: Environment) -> bool:
    """Return whether only the coordinator is set, for processes that SLURM or Open MPI numbers."""
    counted = "SLURM_STEP_ID" in environment or "OMPI_COMM_WORLD_RANK" in environment
    return counted and not {PROCESS_ID, NUM_PROCESSES} & set(environment)


def _from_slurm(environment: Environment) -> ProcessInfo | None:
    if not any(name in environment for name in _BY_SLURM):
        return None
    _check_set(
        environment,
        {"SLURM_STEP_ID": "which srun this is; set by srun alone", **_SLURM},
        "SLURM",
        f"start the processes with srun: srun python train.py; {_ALONE}",
    )
    job, step = _number(environment, "SLURM_JOB_ID"), _number(environment, "SLURM_STEP_ID")
    num, here = _number(environment, "SLURM_STEP_NUM_TASKS"), _tasks_here(environment)
    # Steps of one job may run at the same time, so each has its own port; if that is in use, the next one is taken.
    port, *others = _ports(f"{job}.{step}")
    origin = {"process": "SLURM_PROCID", "number of processes": "SLURM_STEP_NUM_TASKS"}
    if given := environment.get(COORDINATOR):
        coordinator, others, origin["coordinator"] = given, [], COORDINATOR
    else:
        host = "127.0.0.1" if here == num else first_node(environment["SLURM_STEP_NODELIST"])
        coordinator = f"{host}:{port}"
        origin["coordinator"] = "SLURM_STEP_NODELIST, SLURM_JOB_ID and SLURM_STEP_ID"
    return ProcessInfo(
        _number(environment, "SLURM_PROCID"),
        num,
        coordinator,
        local_process=_number(environment, "SLURM_LOCALID") if "SLURM_LOCALID" in environment else None,
        num_local_processes=here,
        origin=origin,
        job=f"SLURM job {job}, step {step}, start {environment.get('SLURM_RESTART_COUNT', '0')}",
        secret=environment.get(TOKEN, ""),
        other_ports=tuple(others),
    )


def _tasks_here(environment: Environment) -> int | None:
    """Return how many tasks this node has: `4(x2),3` says 4 on the first two nodes and 3 on the next."""
    text, node = environment.get("SLURM_STEP_TASKS_PER_NODE", ""), environment.get("SLURM_NODEID", "")
    counts: list[int] = []
    for tasks, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(tasks)] * int(times or 1)
    return counts[int(node)] if node.isdecimal() and int(node) < len(counts) else None


def _from_open_mpi(environment: Environment) -> ProcessInfo | None:
    if not any(name in environment for name in _OPEN_MPI):
        return None
    _check_set(environment, _OPEN_MPI, "Open MPI", f"start with: mpirun -n 2 python train.py; {_ALONE}")
    num = _number(environment, "OMPI_COMM_WORLD_SIZE")
    here = _number(environment, "OMPI_COMM_WORLD_LOCAL_SIZE")
    coordinator, origin, others = _open_mpi_coordinator(environment, alone=here == num)
    return ProcessInfo(
        _number(environment, "OMPI_COMM_WORLD_RANK"),
        num,
        coordinator,
        local_process=_number(environment, "OMPI_COMM_WORLD_LOCAL_RANK"),
        num_local_processes=here,
        origin={
            "process": "OMPI_COMM_WORLD_RANK",
            "number of processes": "OMPI_COMM_WORLD_SIZE",
            "coordinator": origin,
        },
        job=f"Open MPI {environment.get('PMIX_NAMESPACE', '')} at {coordinator}",
        secret=environment.get(TOKEN, ""),
        other_ports=others,
    )


def _open_mpi_coordinator(environment: Environment, *, alone: bool) -> tuple[str, str, tuple[int, ...]]:
    """Return the coordinator, where that is from, and its other ports; Open MPI does not say where process 0 runs.

    Args:
        environment: the variables.
        alone: whether all processes are on this machine.
    """
    if given := environment.get(COORDINATOR):
        return given, COORDINATOR, ()
    if alone:
        for name in ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri"):
            if name in environment:
                port, *others = _ports(environment[name])
                return f"127.0.0.1:{port}", f"one machine, {name}", tuple(others)
    raise JoinError(
        "Open MPI does not say where process 0 is, so the processes cannot meet\n"
        f"  set: OMPI_COMM_WORLD_SIZE={environment['OMPI_COMM_WORLD_SIZE']}\n  missing: {COORDINATOR}\n"
        f"  fix: mpirun -x {COORDINATOR}=FIRST_HOST:{PORTS[0]} ..., where FIRST_HOST is the first in the "
        "host file"
    )


def _ports(job: str) -> list[int]:
    """Return the ports of a job, in the order in which they are tried."""
    first = zlib.crc32(job.encode())
    return [PORTS[(first + 509 * number) % len(PORTS)] for number in range(NUM_TRIES)]


_FIRST = re.compile(r"(?P<start>[^\[,]+)(?:\[(?P<number>\d+)[^\]]*\](?P<end>[^\[,]*))?")


def first_node(nodes: str) -> str:
    """Return the first node of a list.

    Raises:
        JoinError: it cannot be read.

    >>> first_node("gpu[001-003,7],login1"), first_node("a1,a2"), first_node("rack[2-3]-ib")
    ('gpu001', 'a1', 'rack2-ib')
    """
    first = _FIRST.match(nodes)
    if not first:
        raise JoinError(f"the list of nodes {nodes!r} cannot be read (SLURM_STEP_NODELIST)")
    return first["start"] + (first["number"] or "") + (first["end"] or "")
