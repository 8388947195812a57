"""`outlay.join`: make this process one of several, whatever started them."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import socket
from typing import Any

from outlay.core import backend_watch
from outlay.core.error_types import BackendStartedError, JoinError
from outlay.core.flag_check import check_flags
from outlay.core.public_names import called_as
from outlay.jobs import process_info
from outlay.jobs.current_job import PATIENCE, Joined, joined, post, remember, wait_for
from outlay.jobs.exit_hooks import ExitHooks
from outlay.jobs.heartbeat import beat, start_beating
from outlay.jobs.job_folder import JOINED, JoinedProcess, own_job_folder
from outlay.jobs.peer_watch import PeerWatch
from outlay.jobs.proc_files import die_with_parent, namespace
from outlay.jobs.process_info import ProcessInfo, read_process_info
from outlay.jobs.rendezvous import Rendezvous, meet
from outlay.jobs.waiting import Devices

# Seconds without an answer after which a machine counts as lost. A machine that is held for less, such as a virtual one
# during migration, goes on.
_LOST_AFTER = 100.0
# JAX takes a process for dead that is silent for so long. A job that SLURM suspends is silent for hours and then goes
# on: `PeerWatch` can tell which machine is gone. It can do so on Linux only, so elsewhere JAX decides.
_HEARTBEAT = 7 * 24 * 3600 if hasattr(socket, "TCP_USER_TIMEOUT") else None
_OWN_JOB_WITHIN = 30.0  # seconds


@called_as(
    "outlay.join()",
    num_devices="num_processes=; each has the devices that are attached to it",
    process_id="process=",
    coordinator_address="coordinator=",
    rank="process=",
    world_size="num_processes=",
)
def join(
    *,
    process: int | None = None,
    num_processes: int | None = None,
    coordinator: str | None = None,
    timeout: float = PATIENCE,
    stuck_after: float | None = None,
    lost_after: float | None = None,
) -> Joined:
    """Make this process one of several that compute together; `jax.devices()` are then the devices of all of them.

    Call it first, before anything uses JAX's devices. The rank comes from whatever started the processes: `outlay
    launch`, SLURM's `srun`, Open MPI's `mpirun`, or a Kubernetes Job (set `OUTLAY_COORDINATOR` and
    `OUTLAY_NUM_PROCESSES` in it; the rank is its `JOB_COMPLETION_INDEX`). If nothing did, this process is alone and
    nothing changes, so that the same program runs with one process and with many. From then on an uncaught exception,
    or a `SystemExit` other than 0, ends all processes within seconds, and a process that ends well waits for the
    others, however long they work. A second call changes nothing, and neither does a call in a process that this one
    starts: that one is alone.

    Args:
        process: the number of this process, from 0; by default from the environment, like the next two.
        num_processes: how many there are; 1 runs alone, whatever the environment says.
        coordinator: `host:port` of process 0.
        timeout: seconds to wait for the others, here and before a program first runs.
        stuck_after: seconds without a finished step after which the job is ended as stuck, if no launcher watches it; 0
            means never; by default `OUTLAY_STUCK_AFTER` (seconds or `off`), else a multiple of the time that its steps
            take.
        lost_after: seconds without an answer after which another machine counts as lost, if no launcher watches; by
            default `OUTLAY_LOST_AFTER`, else 100.

    Returns:
        The number of this process in the job, and the hosts of all processes.

    Raises:
        JoinError: variables or processes are missing; the message names them. Or `jax.distributed.initialize` was
            called before.
        BackendStartedError: JAX has already started, and would only know the devices of this process.
        BackendError: `XLA_FLAGS` holds flags that XLA does not know.

    >>> outlay.join().num_processes
    1
    """
    before = joined()
    if before is not None:
        return before
    info = _own_info(process, num_processes, coordinator)
    if info is None or _is_taken(info):
        job = Joined()
    else:
        _check_not_started(info)
        check_flags()
        limits = _seconds("stuck_after", stuck_after), _seconds("lost_after", lost_after)
        job = _join(info, timeout, *limits)
    remember(job)
    return job


def _own_info(process: int | None, num_processes: int | None, coordinator: str | None) -> ProcessInfo | None:
    given = {"process": process, "num_processes": num_processes, "coordinator": coordinator}
    if num_processes == 1:
        return None
    missing = [name for name, value in given.items() if value is None]
    if len(missing) == len(given):
        return read_process_info(os.environ)
    if process is None or num_processes is None or coordinator is None:
        there = ", ".join(f"{name}={value!r}" for name, value in given.items() if value is not None)
        raise JoinError(
            f"outlay.join() was given {there}, but not {', '.join(missing)}"
            "\n  fix: give all three, or none if outlay launch, srun or mpirun starts the processes"
        )
    return ProcessInfo(
        process,
        num_processes,
        coordinator,
        origin=dict.fromkeys(("process", "number of processes", "coordinator"), "join()"),
        secret=os.environ.get(process_info.TOKEN, ""),
    )


def _is_taken(info: ProcessInfo) -> bool:
    """Return whether a parent of this process has joined with that rank: this one only inherits its variables."""
    pid, _, taken = os.environ.get(process_info.JOINED, "").partition(" ")
    return pid != str(os.getpid()) and taken == _key(info)


def _key(info: ProcessInfo) -> str:
    return hashlib.sha256(f"{info.name} {info.coordinator} {info.process}".encode()).hexdigest()[:16]


def _seconds(name: str, given: float | None) -> float | None:
    """Return a limit as it is given, or as the environment says; None where neither does."""
    variable = {"stuck_after": process_info.STUCK_AFTER, "lost_after": process_info.LOST_AFTER}[name]
    text = os.environ.get(variable, "") if given is None else str(given)
    if not text:
        return None
    try:
        seconds = 0.0 if text == "off" and name == "stuck_after" else float(text)
    except ValueError:
        seconds = math.nan
    if math.isfinite(seconds) and (seconds > 0 or (seconds == 0 and name == "stuck_after")):
        return seconds
    where = f"{variable}={text}" if given is None else f"outlay.join({name}={text})"
    raise JoinError(
        f"{where} is not a number of seconds\n"
        f"  fix: give seconds, such as 120{', or off' if name == 'stuck_after' else ''}"
    )


def _check_not_started(info: ProcessInfo) -> None:
    from outlay.core.jax_compat import backend_is_started, coordination_client

    if coordination_client() is not None:
        raise JoinError(
            f"outlay.join() comes after jax.distributed.initialize(), which has connected process {info.process} of "
            f"{info.num_processes} already: JAX does not say where the others are, and nobody would watch them"
            "\n  fix: take jax.distributed.initialize() out; outlay.join() calls it"
        )
    if backend_is_started():
        raise BackendStartedError(
            f"outlay.join() comes too late: JAX has started with the devices of this process only, but this is process "
            f"{info.process} of {info.num_processes}\n  {backend_watch.describe_start()}\n"
            "  fix: move outlay.join() above it"
        )


def _join(info: ProcessInfo, timeout: float, stuck_after: float | None, lost_after: float | None) -> Joined:
    folder = own_job_folder()
    if folder:
        die_with_parent()
        start_beating(folder, info.process)
        beat(None, "joining")
    hooks = ExitHooks(info.process, folder)
    hooks.install()  # imports JAX, which takes seconds on a busy machine
    beat(None, "meeting the others")
    _set_devices()
    lost_after = lost_after or _LOST_AFTER
    met = meet(info, timeout, lost_after)
    os.environ[process_info.JOINED] = f"{os.getpid()} {_key(info)}"
    # Under the launcher it is the launcher that ends the others: it sees more.
    devices = Devices(_work_unseen, _is_pending, _is_compiled)
    hooks.peer_watch = PeerWatch(met, acts=folder is None, stuck_after=stuck_after, devices=devices)
    hooks.peer_watch.start()
    _initialize(met, timeout, lost_after)
    _check_own_job(met)
    if folder:
        folder.write_joined(_joined_process(met.info))
        beat(None, JOINED)
    return Joined(
        info.process,
        info.num_processes,
        met.info.coordinator,
        met.hosts,
        int(os.environ.get(process_info.RESTART, "0")),
        info.origin,
        timeout,
    )


def _work_unseen() -> bool:
    """Return whether this process computes on devices that show no sign of work in it: on all but the CPU's."""
    import jax

    from outlay.core.jax_compat import backend_is_started

    return backend_is_started() and jax.default_backend() != "cpu"


def _is_pending() -> bool:
    """Return whether this process has asked its devices for a value that is not there yet."""
    import jax

    from outlay.core.jax_compat import backend_is_started

    if not backend_is_started():
        return False
    with contextlib.suppress(RuntimeError):  # deleted by another thread meanwhile
        return any(not array.is_deleted() and not array.is_ready() for array in jax.live_arrays())
    return False


def _is_compiled(value: object) -> bool:
    import jax

    return isinstance(value, jax.stages.Wrapped | jax.stages.Compiled | jax.Array)


def _set_devices() -> None:
    """Simulate as many devices as the launcher asks for; it has set what XLA reads from the environment already."""
    num_devices = os.environ.get(process_info.DEVICES_PER_PROCESS)
    if num_devices is None:
        return
    import jax

    from outlay.core.runtime_flags import keep_memory

    asked = jax.config.values["jax_num_cpu_devices"]
    if asked not in (-1, int(num_devices)):
        raise JoinError(
            f"outlay launch wants {num_devices} devices in each process, and the program asks for {asked}"
            f"\n  fix: outlay launch --devices-per-process {asked}, or no outlay.simulate({asked}) in the program"
        )
    keep_memory()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", int(num_devices))


def _initialize(met: Rendezvous, timeout: float, lost_after: float) -> None:
    import jax

    from outlay.core.jax_compat import load_no_programs_of_several_cpu_devices

    load_no_programs_of_several_cpu_devices()
    if "JAX_ENABLE_PREEMPTION_SERVICE" not in os.environ:  # else it is wanted
        jax.config.update("jax_enable_preemption_service", False)  # it would swallow SIGTERM
    info = met.info
    jax.distributed.initialize(
        info.coordinator,
        info.num_processes,
        info.process,
        local_device_ids=_own_gpus(info),
        cluster_detection_method="deactivate",
        initialization_timeout=max(1, round(timeout)),
        heartbeat_timeout_seconds=_HEARTBEAT or max(1, round(lost_after)),
        coordinator_bind_address=met.bind or None,
    )


def _check_own_job(met: Rendezvous) -> None:
    """Raise JoinError if JAX, which authenticates nobody, has connected other processes than the rendezvous."""
    if met.info.process == 0:
        post("job", met.nonce)
    elif wait_for("job", _OWN_JOB_WITHIN) != met.nonce:
        raise JoinError(
            f"process {met.info.process} of {met.info.num_processes} met its job at {met.info.coordinator}, but "
            "then JAX connected to another job there: another program took the port in between\n  fix: start again"
        )


def _own_gpus(info: ProcessInfo) -> list[int] | None:
    """Return the GPUs of this process if all processes on its machine see the same ones; None for all visible ones."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    here, local = info.num_local_processes, info.local_process
    if here is None or local is None or here == 1 or len(visible) < here or len(visible) % here:
        return None
    each = len(visible) // here
    return list(range(local * each, (local + 1) * each))


def _joined_process(info: ProcessInfo) -> JoinedProcess:
    import jax

    devices: list[dict[str, Any]] = [
        {"id": device.id, "kind": device.device_kind, "platform": device.platform} for device in jax.local_devices()
    ]
    simulated = process_info.DEVICES_PER_PROCESS
    origin = info.origin | {"devices": simulated if simulated in os.environ else "what is attached"}
    host, pid = socket.gethostname(), os.getpid()
    return JoinedProcess(
        info.process, info.num_processes, host, pid, devices, info.coordinator, origin, namespace=namespace()
    )
