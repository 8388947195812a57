"""Start real processes that find each other over loopback, and collect what each of them wrote."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests import forks
from tests.unit.cli.command import environment

from outlay.core.runtime_flags import merge_flags
from outlay.launcher.job import free_port

SECONDS = 240


def run_workers(script: Path, folder: Path, *, num_processes: int, devices_per_process: int) -> list[dict[str, Any]]:
    """Run `script ID NUM_PROCESSES PORT FOLDER` in every process; each leaves `ID.json` in the folder.

    Where one fails, the others may wait for it for ever: all are killed, and what each printed is in the error.
    """
    count = {"xla_force_host_platform_device_count": str(devices_per_process)}
    env = environment(XLA_FLAGS=merge_flags(os.environ["XLA_FLAGS"], count))
    port = str(free_port())
    logs = [folder / f"{process}.log" for process in range(num_processes)]
    workers = []
    for process, log in enumerate(logs):
        command = [forks.python(), str(script), str(process), str(num_processes), port, str(folder)]
        with log.open("w") as out:
            workers.append(subprocess.Popen(command, env=env, stdout=out, stderr=subprocess.STDOUT))
    try:
        _wait_for_all(workers)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    if any(worker.returncode for worker in workers):
        printed = "\n".join(f"process {process}:\n{log.read_text()[-4000:]}" for process, log in enumerate(logs))
        raise AssertionError(f"exit codes {[worker.returncode for worker in workers]}\n{printed}")
    return [json.loads((folder / f"{process}.json").read_text()) for process in range(num_processes)]


def _wait_for_all(workers: list[subprocess.Popen]) -> None:
    """Until all have ended, the first has failed, or the time is over."""
    for _ in range(SECONDS * 10):
        codes = [worker.poll() for worker in workers]
        if None not in codes or any(codes):
            return
        try:
            workers[codes.index(None)].wait(0.1)
        except subprocess.TimeoutExpired:
            continue
