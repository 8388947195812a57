"""A command in several processes: it starts itself so many times, and each process enters the job."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import typer

from outlay.cli.output import ANSWERS, print_answer
from outlay.jobs.job_folder import JobFolder
from outlay.jobs.silence import Limits


def is_launched() -> bool:
    """Whether a launcher of ours started this process."""
    from outlay.jobs import variables

    return variables.NUM_PROCESSES in os.environ


def run_in_processes(
    num_processes: int,
    devices: int | None,
    *,
    max_restarts: int,
    in_order: bool,
    limits: Limits,
    as_json: bool,
) -> int:
    """This very command in several processes; what it ends with.

    Args:
        num_processes: how many.
        devices: simulated devices that they share; None for what is attached.
        max_restarts: how often to start all of them again after one has failed.
        in_order: show their output by steps.
        limits: how long a process may give no sign of life.
        as_json: print the facts that process 0 ends with as one JSON document.
    """
    import tempfile

    from outlay.jobs.job import Job
    from outlay.jobs.run_job import run_job

    if devices is not None and (devices < num_processes or devices % num_processes):
        raise typer.BadParameter(
            f"{devices} devices cannot be shared evenly by {num_processes} processes; "
            f"{' or '.join(str(num) for num in range(1, devices + 1) if devices % num == 0)} can share them",
            param_hint="--processes",
        )
    each = devices // num_processes if devices is not None else None
    command = [sys.executable, *sys.orig_argv[1:]]
    job = Job(command, num_processes, each, limits=limits, max_restarts=max_restarts, in_order=in_order)
    if not as_json:
        return run_job(job)
    with tempfile.TemporaryDirectory(prefix="outlay-answers-") as folder:
        os.environ[ANSWERS] = folder  # the processes of the job inherit it
        try:
            return run_job(job)
        finally:
            del os.environ[ANSWERS]
            print_answer(Path(folder))


def has_begun() -> bool:
    """Whether an earlier start of this job has taken the run folder, so that it is to be continued."""
    folder = _job_folder()
    return folder is not None and folder.has_begun()


def mark_begun() -> None:
    """Tell later starts of this job that the run folder is its own."""
    if folder := _job_folder():
        folder.mark_begun()


def _job_folder() -> JobFolder | None:
    from outlay.jobs import variables

    path = os.environ.get(variables.JOB_DIR)
    return JobFolder(Path(path)) if path else None


def own_devices(devices: int | None, *, is_shared: bool) -> int | None:
    """Enter the job, if this process is in one; how many devices to simulate after that.

    Args:
        devices: what `--devices` says.
        is_shared: whether that many are shared by the processes, which have their devices then.
    """
    from outlay.jobs.join import join

    num_processes = join().num_processes
    if num_processes == 1:
        return devices
    if devices is not None and not is_shared:
        raise typer.BadParameter(
            f"in a job of {num_processes} processes, each has the devices that the job gives it: leave this out",
            param_hint="--devices",
        )
    return None
