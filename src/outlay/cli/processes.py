"""A command in several processes: it starts itself so many times, and each process enters the job."""

from __future__ import annotations

import os
import sys

import typer


def is_launched() -> bool:
    """Whether a launcher of ours started this process."""
    from outlay.launch import variables

    return variables.NUM_PROCESSES in os.environ


def run_in_processes(num_processes: int, devices: int | None) -> int:
    """This very command in several processes; what it ends with.

    Args:
        num_processes: how many.
        devices: simulated devices that they share; None for what is attached.
    """
    from outlay.launch.job import Job
    from outlay.launch.run_job import run_job

    each, left = divmod(devices, num_processes) if devices is not None else (None, 0)
    if left or each == 0:
        raise typer.BadParameter(
            f"{devices} devices cannot be shared evenly by {num_processes} processes", param_hint="--processes"
        )
    return run_job(Job([sys.executable, *sys.orig_argv[1:]], num_processes, devices_per_process=each))


def own_devices(devices: int | None, *, is_shared: bool) -> int | None:
    """Enter the job, if this process is in one; how many devices to simulate after that.

    Args:
        devices: what `--devices` says.
        is_shared: whether that many are shared by the processes, which have their devices then.
    """
    from outlay.launch.join import join

    num_processes = join().num_processes
    if num_processes == 1:
        return devices
    if devices is not None and not is_shared:
        raise typer.BadParameter(
            f"in a job of {num_processes} processes, each has the devices that the job gives it", param_hint="--devices"
        )
    return None
