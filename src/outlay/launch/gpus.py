"""Which GPUs of this machine each process gets. Nothing here imports JAX."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from outlay.core.errors import LaunchError

_VISIBLE = "CUDA_VISIBLE_DEVICES"


def assign_gpus(
    num_processes: int, environment: Mapping[str, str], devices: Path = Path("/dev")
) -> list[dict[str, str]]:
    """The variable that gives each process its own GPUs, in equal numbers; empty for each where there are none.

    Args:
        num_processes: how many processes.
        environment: what the user has set; GPUs that it hides are not given to anybody.
        devices: the folder with the files of devices.

    Raises:
        LaunchError: the GPUs cannot be shared out evenly.
    """
    gpus = _visible(environment, devices)
    wanted = environment.get("JAX_PLATFORMS", "")
    if num_processes == 1 or not gpus or wanted.lower() == "cpu":
        return [{} for _ in range(num_processes)]
    each, rest = divmod(len(gpus), num_processes)
    if not each or rest:
        fit = [str(num) for num in range(2, len(gpus) + 1) if len(gpus) % num == 0]
        raise LaunchError(
            f"{len(gpus)} GPU{'s' if len(gpus) > 1 else ''} ({', '.join(gpus)}) cannot be shared out evenly among "
            f"{num_processes} processes\n  cure: -n {' or '.join(['1', *fit])}; or {_VISIBLE} with fewer; or on the "
            "CPU, with --devices-per-process"
        )
    return [{_VISIBLE: ",".join(gpus[each * n : each * (n + 1)])} for n in range(num_processes)]


def _visible(environment: Mapping[str, str], devices: Path) -> list[str]:
    if _VISIBLE in environment:
        return [gpu.strip() for gpu in environment[_VISIBLE].split(",") if gpu.strip() not in ("", "-1")]
    found = [re.fullmatch(r"nvidia(\d+)", path.name) for path in devices.glob("nvidia*")]
    return sorted((match[1] for match in found if match), key=int)
