"""`outlay.join`: this process becomes one of several, whatever started it."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

from outlay.core import backend_watch
from outlay.core.errors import BackendStartedError, JoinError
from outlay.launch import variables
from outlay.launch.from_environment import place_from
from outlay.launch.heartbeat import beat, start_beating
from outlay.launch.hooks import Hooks
from outlay.launch.job_folder import JOINED, JobFolder, Who
from outlay.launch.joined import PATIENCE, Joined, joined, remember
from outlay.launch.meet import meet
from outlay.launch.place_in_job import Place
from outlay.launch.process import die_with_parent

# Seconds after which JAX takes a process for dead that says nothing. It is C++ that speaks, so it may be short: only a
# machine that has gone, or a process that is held by a signal, is silent.
_HEARTBEAT = 30


def join(
    *,
    process: int | None = None,
    num_processes: int | None = None,
    coordinator: str | None = None,
    timeout: float = PATIENCE,
) -> Joined:
    """Make this process one of several that compute together, so that `jax.devices()` are the devices of all.

    To be called first, before anything uses JAX's devices. The place in the job comes from whatever started the
    processes: `outlay launch`, SLURM's `srun`, Open MPI's `mpirun`, or a Kubernetes Job (`OUTLAY_COORDINATOR` and
    `OUTLAY_NUM_PROCESSES` set in it; which process it is says `JOB_COMPLETION_INDEX`). Where nothing did, this process
    is alone and nothing changes, so that the program is the same with one process and with many. From then on an
    exception that nobody catches ends this process at once, and so all processes. A second call changes nothing.

    Args:
        process: which process this is, from 0; by default as the environment says, like the next two.
        num_processes: how many there are; 1 runs alone, whatever the environment says.
        coordinator: `host:port` of process 0.
        timeout: seconds to wait for the others, here and before a program runs first.

    Returns:
        The place in the job, and the hosts of all processes.

    Raises:
        JoinError: the environment says it only by half, or processes are missing; the message names them.
        BackendStartedError: JAX has started already, and would know this process's devices only.

    >>> outlay.join().num_processes
    1
    """
    before = joined()
    if before is not None:
        return before
    place = _place(process, num_processes, coordinator)
    if place is None:
        found = Joined()
    else:
        _check_not_started(place)
        found = _join(place, timeout)
    remember(found)
    return found


def _place(process: int | None, num_processes: int | None, coordinator: str | None) -> Place | None:
    given = {"process": process, "num_processes": num_processes, "coordinator": coordinator}
    if num_processes == 1:
        return None
    missing = [name for name, value in given.items() if value is None]
    if len(missing) == len(given):
        return place_from(os.environ)
    if process is None or num_processes is None or coordinator is None:
        there = ", ".join(f"{name}={value!r}" for name, value in given.items() if value is not None)
        raise JoinError(
            f"outlay.join() was given {there}, but not {', '.join(missing)}"
            "\n  cure: give all three, or none of them where outlay launch, srun or mpirun starts the processes"
        )
    return Place(
        process,
        num_processes,
        coordinator,
        origin=dict.fromkeys(("process", "number of processes", "coordinator"), "join()"),
    )


def _check_not_started(place: Place) -> None:
    from outlay.core.jax_compat import backend_is_started

    if backend_is_started():
        raise BackendStartedError(
            f"outlay.join() comes too late: JAX has started with this process's devices only, but this is process "
            f"{place.process} of {place.num_processes}\n  {backend_watch.describe_start()}\n"
            "  cure: move outlay.join() above it"
        )


def _join(place: Place, timeout: float) -> Joined:
    job_dir = os.environ.get(variables.JOB_DIR)
    folder = JobFolder(Path(job_dir)) if job_dir else None
    if folder:
        die_with_parent()
        start_beating(folder.path, place.process)
        beat(None, "joining")
    Hooks(place.process, folder).install()  # imports JAX, which takes seconds on a busy machine
    beat(None, "meeting the others")
    _set_devices()
    hosts = meet(place, timeout)
    _initialize(place, timeout)
    if folder:
        folder.write_who(_who(place))
        beat(None, JOINED)
    return Joined(
        place.process,
        place.num_processes,
        place.coordinator,
        hosts,
        int(os.environ.get(variables.RESTART, "0")),
        place.origin,
        timeout,
    )


def _set_devices() -> None:
    """Simulate as many devices as the launcher wants; what XLA reads from the environment it has set already."""
    wanted = os.environ.get(variables.DEVICES_PER_PROCESS)
    if wanted is None:
        return
    import jax

    from outlay.core.keep_memory import keep_memory

    asked = jax.config.values["jax_num_cpu_devices"]
    if asked not in (-1, int(wanted)):
        raise JoinError(
            f"outlay launch wants {wanted} devices in each process, and the program asks for {asked}"
            f"\n  cure: outlay launch --devices-per-process {asked}, or no outlay.simulate({asked}) in the program"
        )
    keep_memory()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", int(wanted))


def _initialize(place: Place, timeout: float) -> None:
    import jax

    jax.config.update("jax_enable_preemption_service", False)  # it swallows SIGTERM
    only_here = place.address[0] in ("localhost", "127.0.0.1")
    jax.distributed.initialize(
        place.coordinator,
        place.num_processes,
        place.process,
        local_device_ids=_own_gpus(place),
        cluster_detection_method="deactivate",
        initialization_timeout=max(1, round(timeout)),
        heartbeat_timeout_seconds=_HEARTBEAT,
        coordinator_bind_address=f"127.0.0.1:{place.address[1]}" if only_here else None,
    )


def _own_gpus(place: Place) -> list[int] | None:
    """The GPUs of this process where several on one machine all see all of them; None for all that it sees."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    here, local = place.num_local_processes, place.local_process
    if here is None or local is None or here == 1 or len(visible) < here or len(visible) % here:
        return None
    each = len(visible) // here
    return list(range(local * each, (local + 1) * each))


def _who(place: Place) -> Who:
    import jax

    devices: list[dict[str, Any]] = [
        {"id": device.id, "kind": device.device_kind, "platform": device.platform} for device in jax.local_devices()
    ]
    simulated = variables.DEVICES_PER_PROCESS
    origin = place.origin | {"devices": simulated if simulated in os.environ else "what is attached"}
    return Who(
        place.process, place.num_processes, socket.gethostname(), os.getpid(), devices, place.coordinator, origin
    )
