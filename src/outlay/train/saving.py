"""Save and restore a run: the state, and what it collected on the host."""

from __future__ import annotations

import io
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from outlay.core.error_types import CheckpointError
from outlay.core.one_line import OneLine
from outlay.core.output_file import open_plain, raising, write_whole
from outlay.core.quantities import counted
from outlay.devices.mesh_info import is_first
from outlay.program.program import Program
from outlay.train.checkpoint.checkpoints import Checkpoints
from outlay.train.multihost import AgreedStop


@dataclass(frozen=True)
class Saved(OneLine):
    """A saved run to continue.

    Attributes:
        step: the number of steps taken.
        state: the state after them; the run donates it.
        collected: what was collected on the host in these steps.
    """

    step: int
    state: Any
    collected: Mapping[str, np.ndarray] = field(default_factory=dict)


class Saving(OneLine):
    """Save a run at intervals and at its end, and restore it onto any layout and devices.

    Args:
        checkpoints: the checkpoints of the state.
        every: the number of steps between saves; None to save only after the last step.
        collected: the folder for what is collected on the host; None if nothing is.
        step_unit: a run can only be continued after a multiple of this many steps.

    Attributes:
        checkpoints: the checkpoints of the state.
        every: the number of steps between saves.
    """

    def __init__(
        self, checkpoints: Checkpoints, every: int | None, *, collected: Path | None = None, step_unit: int = 1
    ) -> None:
        self.checkpoints = checkpoints
        self.every, self._collected, self._step_unit = every, collected, step_unit
        self._written: set[int] = set()

    def begin(self, step: int) -> None:
        """Start to treat SIGUSR1 as a request to save and to end; `step` is the step after which the run starts."""
        self._stop = AgreedStop(step)

    def is_asked_to_stop(self, step: int) -> bool:
        """Return whether to stop after a step; all processes must call it after the same steps."""
        return self._stop.after(step)

    def is_due(self, step: int, *, is_last: bool) -> bool:
        """Return whether to save the state after a step."""
        if is_last and step % self._step_unit == 0:  # in between, a continued run would record other steps
            return True
        return self.every is not None and step % self.every == 0

    def next_due(self, step: int) -> int:
        """Return the next step to save after this one, or `sys.maxsize` if only the last step is saved."""
        return step + self.every - step % self.every if self.every else sys.maxsize

    def save(self, step: int, program: Program, state: Any, collected: Mapping[str, np.ndarray]) -> None:
        """Save the run. Returns when the state is copied; it is written in the background.

        Args:
            step: the number of steps taken.
            program: the program.
            state: the state.
            collected: what was collected on the host, by name.
        """
        self.checkpoints.wait()  # only then is it certain which checkpoints exist, and so which files to keep
        if self._collected and is_first():
            self._write(self._collected, step, collected)
        self.checkpoints.save(step, program.crop(state))

    def restore(self, program: Program) -> Saved | None:
        """Restore the last save; None if there is none.

        Raises:
            CheckpointError: it is damaged, or belongs to another program.
        """
        if not self.checkpoints.exist():
            return None
        step, state = self.checkpoints.restore(program)
        if self._collected is None:
            return Saved(step, state)
        file = self._collected / f"{step}.npz"
        try:
            # A pickle from elsewhere could run any code.
            with open_plain(file) as opened, np.load(opened, allow_pickle=False) as arrays:
                return Saved(step, state, dict(arrays))
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise CheckpointError(
                f"{file}, which the run collected in its first {step} steps, cannot be read: {error}"
                "\n  fix: restore it, or --force to start a new run"
            ) from error

    def _in_short(self) -> str:
        return f"every {counted(self.every, 'step')}" if self.every else "at the end"

    def _write(self, folder: Path, step: int, collected: Mapping[str, np.ndarray]) -> None:
        path = folder / f"{step}.npz"
        head = f"step {step} cannot be saved: {path} cannot be written"
        fix = "make room or give permission; what was saved before is there"
        with raising(lambda why: CheckpointError(f"{head}: {why}\n  fix: {fix}")):
            folder.mkdir(parents=True, exist_ok=True)
            saved = set(self.checkpoints.steps())
            for past in self._written - saved:  # and no other file: it may belong to somebody else
                (folder / f"{past}.npz").unlink(missing_ok=True)
            self._written = saved | {step}
            arrays = io.BytesIO()
            np.savez(arrays, **collected)  # pyright: ignore[reportArgumentType]  # its second parameter is not an array
            write_whole(path, arrays.getvalue(), through_links=False)
