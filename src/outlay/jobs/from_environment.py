"""Reads a process's place from the variables of `outlay launch`, SLURM, Open MPI or a Kubernetes Job."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping

from outlay.core.error_types import JoinError
from outlay.jobs import variables
from outlay.jobs.place_in_job import Place, need, number

Environment = Mapping[str, str]

_ALONE = "to run alone: outlay.join(num_processes=1)"
# Above the ports that systems hand out for connections: whoever computes one from a job's number finds it free.
_FIRST_PORT, _NUM_PORTS, _NUM_TRIES = 61440, 4096, 8
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


def place_from(environment: Environment) -> Place | None:
    """The place that the environment tells; None where nobody has started several processes.

    Raises:
        JoinError: variables are set by half, or cannot be.
    """
    for find in (_from_outlay, _from_slurm, _from_open_mpi):
        if place := find(environment):
            return place
    return None


def _from_outlay(environment: Environment) -> Place | None:
    own = {
        variables.PROCESS_ID: "which process this is",
        variables.NUM_PROCESSES: "how many there are",
        variables.COORDINATOR: "host:port of process 0",
    }
    if not any(name in environment for name in own) or _is_other(environment):
        return None
    # In the pods of an Indexed Job, Kubernetes counts; the rest is the same in all pods and stands in the Job.
    process = _POD if _POD in environment and variables.PROCESS_ID not in environment else variables.PROCESS_ID
    names = {process: own.pop(variables.PROCESS_ID), **own}
    need(environment, names, "Outlay", f"set them all, or start with: outlay launch -n 2 -- python train.py; {_ALONE}")
    return Place(
        number(environment, process),
        number(environment, variables.NUM_PROCESSES),
        environment[variables.COORDINATOR],
        origin={
            "process": process,
            "number of processes": variables.NUM_PROCESSES,
            "coordinator": variables.COORDINATOR,
        },
        secret=environment.get(variables.TOKEN, ""),
    )


def _is_other(environment: Environment) -> bool:
    """Whether only the coordinator is set, for processes that SLURM or Open MPI counts."""
    counted = "SLURM_STEP_ID" in environment or "OMPI_COMM_WORLD_RANK" in environment
    return counted and not {variables.PROCESS_ID, variables.NUM_PROCESSES} & set(environment)


def _from_slurm(environment: Environment) -> Place | None:
    # Set in every process of an srun, and, for whatever reason, SLURM_PROCID in a batch script outside srun too.
    if not any(name in environment for name in ("SLURM_STEP_ID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")):
        return None
    need(
        environment,
        {"SLURM_STEP_ID": "which srun this is; set by srun alone", **_SLURM},
        "SLURM",
        f"start the processes with srun: srun python train.py; {_ALONE}",
    )
    job, step = number(environment, "SLURM_JOB_ID"), number(environment, "SLURM_STEP_ID")
    num, here = number(environment, "SLURM_STEP_NUM_TASKS"), _tasks_here(environment)
    # Steps of one job run at the same time, so a port is of a step; and where somebody has it, the next one will do.
    port, *others = _ports(f"{job}.{step}")
    origin = {"process": "SLURM_PROCID", "number of processes": "SLURM_STEP_NUM_TASKS"}
    if given := environment.get(variables.COORDINATOR):
        coordinator, others, origin["coordinator"] = given, [], variables.COORDINATOR
    else:
        host = "127.0.0.1" if here == num else first_node(environment["SLURM_STEP_NODELIST"])
        coordinator = f"{host}:{port}"
        origin["coordinator"] = "SLURM_STEP_NODELIST, SLURM_JOB_ID and SLURM_STEP_ID"
    return Place(
        number(environment, "SLURM_PROCID"),
        num,
        coordinator,
        local_process=number(environment, "SLURM_LOCALID") if "SLURM_LOCALID" in environment else None,
        num_local_processes=here,
        origin=origin,
        job=f"SLURM job {job}, step {step}, start {environment.get('SLURM_RESTART_COUNT', '0')}",
        secret=environment.get(variables.TOKEN, ""),
        other_ports=tuple(others),
    )


def _tasks_here(environment: Environment) -> int | None:
    """How many tasks this node has: of `4(x2),3`, which is 4 on the first two nodes and 3 on the next."""
    text, node = environment.get("SLURM_STEP_TASKS_PER_NODE", ""), environment.get("SLURM_NODEID", "")
    counts: list[int] = []
    for tasks, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(tasks)] * int(times or 1)
    return counts[int(node)] if node.isdecimal() and int(node) < len(counts) else None


def _from_open_mpi(environment: Environment) -> Place | None:
    if not any(name in environment for name in _OPEN_MPI):
        return None
    need(environment, _OPEN_MPI, "Open MPI", f"start with: mpirun -n 2 python train.py; {_ALONE}")
    num = number(environment, "OMPI_COMM_WORLD_SIZE")
    here = number(environment, "OMPI_COMM_WORLD_LOCAL_SIZE")
    coordinator, origin, others = _open_mpi_coordinator(environment, alone=here == num)
    return Place(
        number(environment, "OMPI_COMM_WORLD_RANK"),
        num,
        coordinator,
        local_process=number(environment, "OMPI_COMM_WORLD_LOCAL_RANK"),
        num_local_processes=here,
        origin={
            "process": "OMPI_COMM_WORLD_RANK",
            "number of processes": "OMPI_COMM_WORLD_SIZE",
            "coordinator": origin,
        },
        job=f"Open MPI {environment.get('PMIX_NAMESPACE', '')} at {coordinator}",
        secret=environment.get(variables.TOKEN, ""),
        other_ports=others,
    )


def _open_mpi_coordinator(environment: Environment, *, alone: bool) -> tuple[str, str, tuple[int, ...]]:
    """Where to meet, where that is from, and other ports there; Open MPI does not say on which machine process 0 is.

    Args:
        environment: the variables.
        alone: all processes are on this machine.
    """
    if given := environment.get(variables.COORDINATOR):
        return given, variables.COORDINATOR, ()
    if alone:
        for name in ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri"):
            if name in environment:
                port, *others = _ports(environment[name])
                return f"127.0.0.1:{port}", f"one machine, {name}", tuple(others)
    raise JoinError(
        "Open MPI does not say where process 0 is, so the processes cannot meet\n"
        f"  there: OMPI_COMM_WORLD_SIZE={environment['OMPI_COMM_WORLD_SIZE']}\n  missing: {variables.COORDINATOR}\n"
        f"  fix: mpirun -x {variables.COORDINATOR}=FIRST_HOST:{_FIRST_PORT} ..., FIRST_HOST being the first in the "
        "host file"
    )


def _ports(job: str) -> list[int]:
    """The ports that belong to a job, in the order in which they are tried."""
    first = zlib.crc32(job.encode())
    return [_FIRST_PORT + (first + 509 * number) % _NUM_PORTS for number in range(_NUM_TRIES)]


_FIRST = re.compile(r"(?P<start>[^\[,]+)(?:\[(?P<number>\d+)[^\]]*\](?P<end>[^\[,]*))?")


def first_node(nodes: str) -> str:
    """The first node of a list.

    Raises:
        JoinError: it cannot be read.

    >>> first_node("gpu[001-003,7],login1"), first_node("a1,a2"), first_node("rack[2-3]-ib")
    ('gpu001', 'a1', 'rack2-ib')
    """
    found = _FIRST.match(nodes)
    if not found:
        raise JoinError(f"the list of nodes {nodes!r} cannot be read (SLURM_STEP_NODELIST)")
    return found["start"] + (found["number"] or "") + (found["end"] or "")
