"""A job on this machine: a command, how many processes run it, and the environment variables of each."""

from __future__ import annotations

import contextlib
import os
import random
import re
import resource
import secrets
import shutil
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from outlay.core.error_types import LaunchError
from outlay.core.quantities import counted
from outlay.core.runtime_flags import simulated_environment
from outlay.jobs import process_info
from outlay.jobs.job_folder import JobFolder
from outlay.jobs.proc_files import MARK
from outlay.jobs.process_info import NUM_TRIES, PORTS
from outlay.jobs.stall import Limits


@dataclass(frozen=True)
class Job:
    """What to start.

    Attributes:
        command: the program and its arguments, the same for every process.
        num_processes: how many.
        devices_per_process: simulated CPU devices of each; if None, each has its share of the GPUs.
        port: the port of the coordinator; a free one if None.
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
            raise LaunchError("there is no command to run\n  fix: outlay launch -n 2 -- python train.py")
        if self.num_processes < 1:
            raise LaunchError(f"{self.num_processes} processes cannot be started; the least is 1")
        if self.devices_per_process is not None and self.devices_per_process < 1:
            raise LaunchError(f"{self.devices_per_process} devices per process cannot be simulated; the least is 1")
        if shutil.which(self.command[0]) is None:
            raise LaunchError(_not_found(self.command[0]))
        check_limits(self.num_processes)
        if self.port is not None:
            check_port(self.port)

    def environment(self, process: int, port: int, folder: JobFolder, restart: int) -> dict[str, str]:
        """Return the environment variables of a process.

        Raises:
            LaunchError: JAX_PLATFORMS or XLA_FLAGS exclude simulated devices, or GPUs cannot be divided.
        """
        own = {
            process_info.PROCESS_ID: str(process),
            process_info.NUM_PROCESSES: str(self.num_processes),
            process_info.COORDINATOR: f"{LOOPBACK}:{port}",
            process_info.TOKEN: self.token,
            process_info.JOB_DIR: str(folder.path),
            MARK: f"{os.environ.get(MARK, '')} {folder.mark}".strip(),
            process_info.RESTART: str(restart),
            **({process_info.IN_ORDER: "1"} if self.in_order else {}),
            "PYTHONUNBUFFERED": "1",  # lines come when they are printed, and none is lost with a process
        }
        if self.devices_per_process is None:
            return os.environ | own | assign_gpus(self.num_processes, os.environ)[process]
        platforms = os.environ.get("JAX_PLATFORMS", "cpu")
        if "cpu" not in platforms.lower().split(","):
            raise LaunchError(
                f"--devices-per-process simulates CPU devices, but JAX_PLATFORMS={platforms} excludes the CPU\n"
                f"  fix: unset JAX_PLATFORMS, or drop --devices-per-process to use the attached devices"
            )
        own[process_info.DEVICES_PER_PROCESS] = str(self.devices_per_process)
        return os.environ | own | simulated_environment(self.devices_per_process, os.environ)


def _not_found(command: str) -> str:
    if command.endswith(".py") and Path(command).is_file():
        return (
            f"{command} is a Python file, not a command that can be run\n  fix: outlay launch ... -- python {command}"
        )
    if Path(command).exists():
        return f"{command} cannot be run: it is a folder, or not executable\n  fix: chmod +x {command}"
    return (
        f"the command {command!r} does not exist: there is no such file, and PATH has no such command"
        "\n  fix: install it, or give its path, such as ./train.sh"
    )


_VISIBLE = "CUDA_VISIBLE_DEVICES"


def assign_gpus(
    num_processes: int, environment: Mapping[str, str], devices: Path = Path("/dev")
) -> list[dict[str, str]]:
    """Return by process the variable that gives it its own GPUs, in equal numbers; empty where there are none.

    Args:
        num_processes: how many processes.
        environment: what the user has set; GPUs that it hides are not given to anybody.
        devices: the folder with the files of devices.

    Raises:
        LaunchError: the GPUs cannot be divided evenly.
    """
    gpus = _visible(environment, devices)
    platforms = environment.get("JAX_PLATFORMS", "")
    if num_processes == 1 or not gpus or platforms.lower() == "cpu":
        return [{} for _ in range(num_processes)]
    each, rest = divmod(len(gpus), num_processes)
    if not each or rest:
        fit = [str(num) for num in range(2, len(gpus) + 1) if len(gpus) % num == 0]
        raise LaunchError(
            f"{counted(len(gpus), 'GPU')} ({', '.join(gpus)}) cannot be divided evenly among "
            f"{num_processes} processes\n  fix: -n {' or '.join(['1', *fit])}; or set {_VISIBLE} to fewer; or use the "
            "CPU, with --devices-per-process"
        )
    return [{_VISIBLE: ",".join(gpus[each * n : each * (n + 1)])} for n in range(num_processes)]


def _visible(environment: Mapping[str, str], devices: Path) -> list[str]:
    if _VISIBLE in environment:
        return [gpu.strip() for gpu in environment[_VISIBLE].split(",") if gpu.strip() not in ("", "-1")]
    matches = [re.fullmatch(r"nvidia(\d+)", path.name) for path in devices.glob("nvidia*")]
    return sorted((match[1] for match in matches if match), key=int)


_PIPES = 2
_OWN_FILES = 64  # open files of the launcher itself
_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


def check_limits(num_processes: int, ports: Path = _PORTS) -> None:
    """Raise LaunchError if more processes are asked for than can be started; raise the limit of open files.

    Args:
        num_processes: how many.
        ports: the file with the first and the last port that the system hands out.

    Raises:
        LaunchError: there are too few ports or open files for them.
    """
    num_ports = _num_ports(ports)
    if num_processes > num_ports:
        raise LaunchError(
            f"{num_processes} processes need a port each, and this machine has {num_ports} of them ({ports})"
            f"\n  fix: start at most {num_ports} processes, and fewer if other programs need ports too"
        )
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _PIPES * num_processes + _OWN_FILES
    if most != resource.RLIM_INFINITY and needed > most:
        fit = max((most - _OWN_FILES) // _PIPES, 1)
        raise LaunchError(
            f"{num_processes} processes need {needed} open files in the launcher, but only {most} are allowed"
            f"\n  fix: start at most {fit} processes, or raise the limit: ulimit -Hn {needed}"
        )
    # A process may raise its soft limit itself, up to the hard one.
    if soft != resource.RLIM_INFINITY and needed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, most))


def _num_ports(file: Path) -> int:
    """Return the number of ephemeral ports; if unknown, of all ports that are not reserved."""
    try:
        first, last = map(int, file.read_text().split())
    except (OSError, ValueError):
        first, last = 1024, 65535
    return last - first + 1


LOOPBACK = "127.0.0.1"


def free_port() -> int:
    """Return a port that nobody uses now, nor, most likely, in the seconds until process 0 listens there."""
    with socket.socket() as probe:
        for port in [*random.SystemRandom().sample(PORTS, NUM_TRIES), 0]:  # 0: any that is free
            with contextlib.suppress(OSError):
                probe.bind((LOOPBACK, port))
                break
        return probe.getsockname()[1]


def check_port(port: int) -> None:
    """Raise LaunchError if a port that the user chose cannot be used.

    Raises:
        LaunchError: it is in use, or may not be used.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            raise LaunchError(
                f"port {port} cannot be used for the coordinator: {error.strerror}\n"
                f"  fix: drop --port, and a free one is chosen (such as {free_port()} now)"
            ) from error
