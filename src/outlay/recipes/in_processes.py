"""A recipe run in processes of their own, and what a process of a job knows of it."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outlay.core.error_types import LaunchError, RecipeError
from outlay.jobs import process_info
from outlay.jobs.exit_codes import INTERRUPTED
from outlay.jobs.job_folder import Flag, JobFolder

if TYPE_CHECKING:
    from outlay.recipes.run_kind import Result

RESULT = "OUTLAY_RESULT"
"""The variable that names the file in which the first process of a job leaves its result for `run_in_processes`."""


def run_in_processes(recipe: str, words: Sequence[str]) -> Result:
    """Run the command `outlay run` with `--processes`; return what the first of its processes returned.

    It is a process of its own that starts and watches the others: this one may have started JAX, after which it should
    not fork, and may not be in its main thread, which alone hears signals. What they print is printed here.

    Args:
        recipe: what names it on the command line.
        words: options of the command and of the recipe, `--processes` among them.

    Raises:
        LaunchError: the command has failed; what it said stands above.
        KeyboardInterrupt: somebody has interrupted this process, or the command.
    """
    with tempfile.TemporaryDirectory(prefix="outlay-result-") as folder:
        file = Path(folder, "result.pickle")
        command = [sys.executable, "-m", "outlay", "run", recipe, *words]
        process = subprocess.Popen(command, env={**os.environ, RESULT: str(file)})
        try:
            code = process.wait()
        except BaseException:
            process.send_signal(signal.SIGINT)  # a notebook interrupts its own process only
            process.wait()
            raise
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        if code:
            raise LaunchError(f"the run of {recipe} in processes of its own ended with exit code {code}: see above why")
        return pickle.loads(file.read_bytes())


def hand_over(result: Result) -> None:
    """Leave the result of a run where `run_in_processes`, in the process that has asked for it, looks for it."""
    if file := os.environ.get(RESULT):
        Path(file).write_bytes(pickle.dumps(result))


def words_of_arguments(given: Mapping[str, Any]) -> list[str]:
    """Arguments of `outlay.run` as options of the command; None and False are left out.

    Raises:
        RecipeError: some are objects that only this process has; all are listed.

    >>> words_of_arguments({"layout": "fsdp", "mode": None, "force": True, "record": ["params.**", "step"]})
    ['--layout', 'fsdp', '--force', '--record', 'params.**', '--record', 'step']
    """
    plain = str | int | float | Path | Sequence | None
    if objects := [name for name, value in given.items() if not isinstance(value, plain)]:
        raise RecipeError(
            f"processes of their own cannot be given this process's objects: {', '.join(objects)}"
            "\n  fix: as text or a number, as on the command line, or in the recipe's own function"
        )
    words = []
    for name, value in given.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(option)
        elif isinstance(value, Sequence) and not isinstance(value, str):
            words += [word for each in value for word in (option, each)]
        elif value is not None and value is not False:
            words += [option, "off" if value == float("inf") else str(value)]
    return words


def is_launched() -> bool:
    """Whether `outlay launch` or `outlay run --processes` started this process."""
    return process_info.NUM_PROCESSES in os.environ


def has_begun() -> bool:
    """Whether an earlier start of this job has taken the run folder, so that this one continues it."""
    folder = _job_folder()
    return folder is not None and folder.has(Flag.BEGUN)


def mark_begun() -> None:
    """Mark that this job has taken the run folder, for later starts of it."""
    if folder := _job_folder():
        folder.set(Flag.BEGUN)


def _job_folder() -> JobFolder | None:
    path = os.environ.get(process_info.JOB_DIR)
    return JobFolder(Path(path)) if path else None
