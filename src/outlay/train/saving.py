"""What a run saves on its way: the state, and beside it what was collected on the host."""

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
from outlay.core.output_file import write_whole
from outlay.program.program import Program
from outlay.train.checkpoint.checkpoints import Checkpoints
from outlay.train.multihost import StopTogether, is_first


@dataclass(frozen=True)
class Saved:
    """What a run is continued from.

    Attributes:
        step: how many steps were taken.
        state: the state after them; used up by the run.
        collected: what was collected in them on the host.
    """

    step: int
    state: Any
    collected: Mapping[str, np.ndarray] = field(default_factory=dict)


class Saving:
    """Saves a run every so many steps and at its end; restores what was saved onto any layout and devices.

    Args:
        checkpoints: the states.
        every: after how many steps; None for the last step only.
        collected: the folder of what is collected on the host; None where nothing is.
        step_unit: a run can be continued after steps that this divides.

    Attributes:
        checkpoints: the states.
        every: after how many steps.
    """

    def __init__(
        self, checkpoints: Checkpoints, every: int | None, *, collected: Path | None = None, step_unit: int = 1
    ) -> None:
        self.checkpoints = checkpoints
        self.every, self._collected, self._step_unit = every, collected, step_unit
        self._written: set[int] = set()

    def begin(self, step: int) -> None:
        """From now on SIGUSR1 asks the run, which is after this step, to save and to end."""
        self._stop = StopTogether(step)

    def is_asked_to_stop(self, step: int) -> bool:
        """Whether to stop after a step; all processes ask after the same ones."""
        return self._stop.after(step)

    def is_due(self, step: int, *, is_last: bool) -> bool:
        """Whether the state after a step is to be saved."""
        if is_last and step % self._step_unit == 0:  # in between, other steps would be recorded after it
            return True
        return self.every is not None and step % self.every == 0

    def next_due(self, step: int) -> int:
        """The next step after this one that is saved; no step at all, `sys.maxsize`, where only the last is."""
        return step + self.every - step % self.every if self.every else sys.maxsize

    def save(self, step: int, program: Program, state: Any, collected: Mapping[str, np.ndarray]) -> None:
        """Save; it returns when the state is copied.

        Args:
            step: how many steps were taken.
            program: what ran them.
            state: the state.
            collected: what was collected on the host, by name.
        """
        self.checkpoints.wait()  # which ones there are, and so whose files stay, is certain then
        if self._collected and is_first():
            self._write(self._collected, step, collected)
        self.checkpoints.save(step, program.crop(state))

    def restore(self, program: Program) -> Saved | None:
        """What was saved last; None where nothing was.

        Raises:
            CheckpointError: it is damaged, or of another program.
        """
        if not self.checkpoints.exist():
            return None
        step, state = self.checkpoints.restore(program)
        if self._collected is None:
            return Saved(step, state)
        file = self._collected / f"{step}.npz"
        try:
            with np.load(file, allow_pickle=False) as arrays:
                return Saved(step, state, dict(arrays))
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise CheckpointError(
                f"{file}, what the run had collected in its first {step} steps, cannot be read: {error}"
                "\n  fix: put it back, or --force to begin the run anew"
            ) from error

    def _write(self, folder: Path, step: int, collected: Mapping[str, np.ndarray]) -> None:
        path = folder / f"{step}.npz"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            saved = set(self.checkpoints.steps())
            for gone in self._written - saved:  # and no other file, whatever its name: it may be somebody else's
                (folder / f"{gone}.npz").unlink(missing_ok=True)
            self._written = saved | {step}
            arrays = io.BytesIO()
            np.savez(arrays, **collected)  # pyright: ignore[reportArgumentType]  # its second parameter is no array
            write_whole(path, arrays.getvalue())
        except OSError as error:
            raise CheckpointError(
                f"step {step} cannot be saved: {path} cannot be written: {error.strerror}"
                "\n  fix: make room or give permission; what was saved before is there"
            ) from error
