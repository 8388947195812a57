"""What a job on this machine is: a command, how often to run it at the same time, and what each process is told."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from outlay.core.errors import LaunchError
from outlay.core.simulated_environment import simulated_environment
from outlay.launch import variables
from outlay.launch.free_port import LOOPBACK, check_port
from outlay.launch.gpus import assign_gpus
from outlay.launch.job_folder import JobFolder
from outlay.launch.limits import check_limits
from outlay.launch.proc_files import MARK
from outlay.launch.silence import Limits


@dataclass(frozen=True)
class Job:
    """What to start.

    Attributes:
        command: the program and its arguments, the same for every process.
        num_processes: how many.
        devices_per_process: simulated CPU devices of each; if None, each has its share of the GPUs.
        port: of the coordinator; a free one if None.
        limits: how long a process may give no sign of life.
        max_restarts: how often to start all processes again after one has failed.
        in_order: show their lines by steps.
        token: what the processes of this job alone know.
    """

    command: Sequence[str]
    num_processes: int
    devices_per_process: int | None = None
    port: int | None = None
    limits: Limits = field(default_factory=Limits)
    max_restarts: int = 0
    in_order: bool = False
    token: str = field(default_factory=secrets.token_hex, repr=False)

    def __post_init__(self) -> None:
        if not self.command:
            raise LaunchError("there is no command to run\n  cure: outlay launch -n 2 -- python train.py")
        if self.num_processes < 1:
            raise LaunchError(f"{self.num_processes} processes cannot be started; at least 1 can")
        if self.devices_per_process is not None and self.devices_per_process < 1:
            raise LaunchError(f"{self.devices_per_process} devices per process cannot be simulated; at least 1 can")
        if shutil.which(self.command[0]) is None:
            raise LaunchError(_not_found(self.command[0]))
        check_limits(self.num_processes)
        if self.port is not None:
            check_port(self.port)

    def environment(self, process: int, port: int, folder: JobFolder, restart: int) -> dict[str, str]:
        """The variables of a process.

        Raises:
            LaunchError: variables that are set speak against simulated devices, or GPUs cannot be shared out.
        """
        own = {
            variables.PROCESS_ID: str(process),
            variables.NUM_PROCESSES: str(self.num_processes),
            variables.COORDINATOR: f"{LOOPBACK}:{port}",
            variables.TOKEN: self.token,
            variables.JOB_DIR: str(folder.path),
            MARK: f"{os.environ.get(MARK, '')} {folder.mark}".strip(),
            variables.RESTART: str(restart),
            **({variables.IN_ORDER: "1"} if self.in_order else {}),
            "PYTHONUNBUFFERED": "1",  # lines come when they are printed, and none is lost with a process
        }
        if self.devices_per_process is None:
            return os.environ | own | assign_gpus(self.num_processes, os.environ)[process]
        platforms = os.environ.get("JAX_PLATFORMS", "cpu")
        if "cpu" not in platforms.lower().split(","):
            raise LaunchError(
                f"--devices-per-process simulates CPU devices, but JAX_PLATFORMS={platforms} leaves the CPU out\n"
                f"  cure: unset JAX_PLATFORMS, or leave out --devices-per-process to use what is attached"
            )
        own[variables.DEVICES_PER_PROCESS] = str(self.devices_per_process)
        return os.environ | own | simulated_environment(self.devices_per_process, os.environ)


def _not_found(command: str) -> str:
    if command.endswith(".py") and Path(command).is_file():
        return (
            f"{command} is a Python file, not a command that can be run\n  cure: outlay launch ... -- python {command}"
        )
    if Path(command).exists():
        return f"{command} cannot be run: it is a folder, or not executable\n  cure: chmod +x {command}"
    return (
        f"the command {command!r} does not exist: there is no such file, and none of that name on PATH"
        "\n  cure: install it, or give its path, such as ./train.sh"
    )
