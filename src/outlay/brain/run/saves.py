"""What a run of a Brain saves on its way: the state, and beside it what was collected on the host."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from outlay.brain.run.brain_folder import COLLECTED
from outlay.brain.run.brain_recipe import BrainRecipe
from outlay.core.error_types import CheckpointError
from outlay.core.output_file import write_whole
from outlay.program.program import Program
from outlay.train.checkpoint.checkpoints import Checkpoints
from outlay.train.run_folder import RunFolder
from outlay.train.stop import StopTogether
from outlay.train.together import is_first


@dataclass(frozen=True)
class Saved:
    """What a run is continued from.

    Attributes:
        step: how many steps were taken.
        state: the state after them; used up by the run.
        collected: what was collected in them, as `Collected.to_arrays` gives it.
    """

    step: int
    state: Any
    collected: Mapping[str, np.ndarray]


class Saves:
    """Saves a run every so many steps and at its end; restores what was saved onto any layout and devices.

    Args:
        recipe: the recipe of the run.
        folder: that of the run; its checkpoints are the states, its `collected/` gets the rest.
        every: how many steps.

    Attributes:
        every: how many steps.
        checkpoints: the states.

    Raises:
        CheckpointError: runs of the recipe cannot be saved, or not every so many steps.
    """

    def __init__(self, recipe: BrainRecipe, folder: RunFolder, every: int) -> None:
        _refuse_unsaveable(recipe, every)
        self.every = every
        self._stride = recipe.stride
        self.checkpoints = Checkpoints(folder.checkpoints_path)
        self._collected = folder.path / COLLECTED

    def begin(self, step: int) -> None:
        """From now on SIGUSR1 asks the run, which is after this step, to save and to end."""
        self._stop = StopTogether(step)

    def is_asked_to_stop(self, step: int) -> bool:
        """Whether to stop after a step; all processes ask after the same ones."""
        return self._stop.after(step)

    def is_due(self, step: int, *, is_last: bool) -> bool:
        """Whether the state after a step is to be saved."""
        # A run that ends between two recorded steps would go on from there with other steps than these.
        return step % self.every == 0 or (is_last and step % self._stride == 0)

    def steps_until_due(self, step: int) -> int:
        """How many steps there are between a step and the next save."""
        return self.every - step % self.every

    def save(self, step: int, program: Program, state: Any, collected: Mapping[str, np.ndarray]) -> None:
        """Save; it returns when the state is copied.

        Args:
            step: how many steps were taken.
            program: what ran them.
            state: the state.
            collected: `Collected.to_arrays()`.
        """
        self.checkpoints.wait()  # which ones there are, and so whose files stay, is certain then
        if is_first():
            self._write(step, collected)
        self.checkpoints.save(step, program.crop(state))

    def restore(self, program: Program) -> Saved | None:
        """What was saved last; None where nothing was.

        Raises:
            CheckpointError: it is damaged, or of another Brain.
        """
        if not self.checkpoints.exist():
            return None
        step, state = self.checkpoints.restore(program)
        file = self._file(step)
        try:
            with np.load(file, allow_pickle=False) as arrays:
                return Saved(step, state, dict(arrays))
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise CheckpointError(
                f"{file}, what the run had collected in its first {step} steps, cannot be read: {error}"
                "\n  fix: put it back, or --force to begin the run anew"
            ) from error

    def _write(self, step: int, collected: Mapping[str, np.ndarray]) -> None:
        try:
            self._collected.mkdir(parents=True, exist_ok=True)
            kept = {str(kept) for kept in self.checkpoints.steps()}
            for file in self._collected.glob("*.npz"):
                if file.stem.isdecimal() and file.stem not in kept:
                    file.unlink()
            arrays = io.BytesIO()
            np.savez(arrays, **collected)  # pyright: ignore[reportArgumentType]  # its second parameter is no array
            write_whole(self._file(step), arrays.getvalue())
        except OSError as error:
            raise CheckpointError(
                f"step {step} cannot be saved: {self._file(step)} cannot be written: {error.strerror}"
                "\n  fix: make room or give permission; what was saved before is there"
            ) from error

    def _file(self, step: int) -> Path:
        return self._collected / f"{step}.npz"


def _refuse_unsaveable(recipe: BrainRecipe, every: int) -> None:
    if recipe.loop is not None:
        raise CheckpointError(
            "a run in a closed loop saves no checkpoints: the state of its environment cannot be saved\n"
            "  fix: leave --checkpoint-every and --resume out"
        )
    if recipe.moments.triggers:
        raise CheckpointError(
            "a run that records around events saves no checkpoints: what waits for an event would be lost\n"
            "  fix: leave --checkpoint-every and --resume out, or record windows of time, or all, with a stride"
        )
    if every % recipe.stride:
        fits = -(-every // recipe.stride) * recipe.stride
        raise CheckpointError(
            f"a checkpoint every {every} steps would be between two of the steps that are recorded, every "
            f"{recipe.stride}\n  fix: --checkpoint-every {fits}"
        )
