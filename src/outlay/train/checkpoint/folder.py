"""Manage and inspect the folder of a run's checkpoints: one folder per step, renamed to it once it is complete."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from outlay.core.error_types import CheckpointError, Problem
from outlay.core.own_folder import MARK, OwnFolder, folder_id, mark
from outlay.core.quantities import counted, format_bytes, listed
from outlay.core.terminal_text import table
from outlay.train.checkpoint.integrity import ARRAYS, MANIFEST, Manifest, damaged_files, files_in, read_manifest

_KIND = "checkpoint folder"
_STEP = re.compile(r"0|[1-9][0-9]{0,17}")


class CheckpointFolder:
    """Name, list, complete and remove the checkpoints of a folder; the arrays are not its concern.

    The folder and each checkpoint in it are marked with the folder's number. Only what has this mark is ever replaced
    or removed.

    Args:
        path: the folder; it need not exist until something is saved.

    Attributes:
        own: the ownership mark of the folder; saving takes its lock.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.own = OwnFolder(path, _KIND, CheckpointError, lambda: "another folder, which is new or empty")

    def step_folder(self, step: int) -> Path:
        """Return the folder of a step's checkpoint."""
        return self.path / str(step)

    def present(self) -> list[int]:
        """List the steps with an Outlay checkpoint, intact or damaged, oldest first; other folders are ignored."""
        if not self.path.is_dir():
            return []
        with self.own.as_error():
            names = os.listdir(self.path)
        steps = [int(name) for name in names if _STEP.fullmatch(name)]
        return sorted(step for step in steps if self._is_checkpoint(step))

    def damage(self, step: int, *, contents: bool) -> list[str]:
        """List the damage of a step's checkpoint, one line per file; `contents` also verifies the checksums."""
        folder = self.step_folder(step)
        manifest = read_manifest(folder)
        if isinstance(manifest, str):
            return [manifest]
        if manifest.step != step:
            return [f"{folder} is the checkpoint of step {manifest.step}, in a folder named {step}"]
        return damaged_files(folder, manifest, contents=contents)

    def whole(self) -> list[int]:
        """List the steps with all files in their full size, oldest first."""
        return [step for step in self.present() if not self.damage(step, contents=False)]

    def begin(self, step: int) -> list[str]:
        """Create the empty folder `partial` of a step, and remove what killed runs left half-written.

        Returns:
            A line for everything that could not be removed.

        Raises:
            CheckpointError: the folder, or that of the step, is not Outlay's; or another program is writing to it.
        """
        self.own.take()
        final = self.step_folder(step)
        if os.path.lexists(final) and (why := self._why_not_ours(step)):
            raise CheckpointError(
                f"step {step} cannot be saved: {final} is there, and {why}; nothing was touched"
                "\n  fix: rename it, or another folder for these checkpoints"
            )
        left = self._clear_partials()
        with self.own.as_error():
            self.partial(step).mkdir()
            mark(self.partial(step), self._kind_of(step), self._id)
        return left

    def check_free(self, is_due: Callable[[int], bool]) -> None:
        """Raise if a step that a run will save has a folder that is not ours to replace; nothing is touched.

        Args:
            is_due: whether the run will save a step.

        Raises:
            CheckpointError: every such step is listed.
        """
        self.own.check_owned()
        if not self.path.is_dir():
            return
        with self.own.as_error():
            names = os.listdir(self.path)
            due = sorted(step for name in names if _STEP.fullmatch(name) and is_due(step := int(name)))
            problems = [
                Problem("in the way", str(self.step_folder(step)), why, "rename it, or another folder for this run")
                for step in due
                if (why := self._why_not_ours(step))
            ]
        if problems:
            raise CheckpointError(
                f"{counted(len(problems), 'step')} could not be saved in {self.path}; nothing was touched", problems
            )

    def partial(self, step: int) -> Path:
        """Return the temporary folder of a step's checkpoint; the number in its name marks it as ours."""
        return self.path / f"{step}.{self._id}.partial"

    def complete(self, partial: Path, manifest: Manifest) -> list[str]:
        """Rename a `partial` folder to the checkpoint of its step, atomically.

        Returns:
            A line for everything that could not be removed.
        """
        manifest.write(partial)
        final = self.step_folder(manifest.step)
        left = []
        if os.path.lexists(final):  # a damaged one: `save` refuses to replace a whole one, `begin` one that is not ours
            left = self._remove(manifest.step)
        partial.rename(final)
        _sync(self.path)
        # Background writers of a failed save may have recreated its folder after it was removed.
        return [*left, *self._clear_partials()]

    def own_steps(self) -> list[int]:
        """List the steps whose checkpoints this folder's runs have written."""
        return [step for step in self.present() if self._is_ours(step)]

    def keep_last(self, keep: int) -> list[str]:
        """Remove our checkpoints that are older than the last `keep` intact ones.

        Returns:
            A line for everything that could not be removed.
        """
        newest = self.whole()[-keep:]
        old = [step for step in self.present() if newest and step < newest[0] and self._is_ours(step)]
        return [line for step in old for line in self._remove(step)]

    def clear(self) -> list[str]:
        """Remove our checkpoints and nothing else.

        Returns:
            A line for everything that could not be removed.
        """
        self.own.take()
        return [*self._clear_partials(), *(line for step in self.own_steps() for line in self._remove(step))]

    def discard(self, partial: Path) -> None:
        """Free the disk space of a checkpoint that could not be written."""
        shutil.rmtree(partial, ignore_errors=True)

    @property
    def _id(self) -> str:
        id = self.own.id
        if id is None:
            raise CheckpointError(f"{self.path / MARK} is gone, which says that these checkpoints are Outlay's")
        return id

    def _kind_of(self, step: int) -> str:
        return f"checkpoint {step} of"

    def _is_ours(self, step: int) -> bool:
        folder = self.step_folder(step)
        id = self.own.id
        return id is not None and not folder.is_symlink() and folder_id(folder, self._kind_of(step)) == id

    def _is_checkpoint(self, step: int) -> bool:
        """Return whether a folder is an Outlay checkpoint, written here or copied here."""
        folder = self.step_folder(step)
        return folder.is_dir() and (os.path.lexists(folder / MANIFEST) or self._is_ours(step))

    def _why_not_ours(self, step: int) -> str:
        """Say why a step's folder must not be touched; empty if it is ours and has nothing else in it."""
        folder = self.step_folder(step)
        # A data set may have its classes in folders 0 to 9: a name is no evidence, the mark in it is (decision 13).
        if not self._is_ours(step):
            return "Outlay did not write it there"
        manifest = read_manifest(folder)
        known = {MANIFEST, MARK, *(() if isinstance(manifest, str) else manifest.files)}
        strange = [
            name
            for name in files_in(folder)
            if name not in known and not (isinstance(manifest, str) and name.startswith(f"{ARRAYS}/"))
        ]
        return f"it holds what Outlay did not write: {listed(strange)}" if strange else ""

    def _clear_partials(self) -> list[str]:
        """Remove our temporary folders, of unfinished saves or left over from failed removals."""
        pattern = re.compile(rf"\d+\.{self._id}(\.[0-9a-f]+)?\.partial")
        with self.own.as_error():
            names = [name for name in os.listdir(self.path) if pattern.fullmatch(name)]
        return [line for name in names for line in self._remove_folder(self.path / name)]

    def _remove(self, step: int) -> list[str]:
        try:
            why = self._why_not_ours(step)
        except OSError as error:
            why = str(error)
        if why:
            return [f"{self.step_folder(step)} stays: {why}"]
        return self._remove_folder(self.step_folder(step))

    def _remove_folder(self, folder: Path) -> list[str]:
        """Rename, then remove: a kill in between leaves nothing that looks like a checkpoint, and the name is free."""
        going = folder
        try:
            if folder.name.count(".") < 3:  # it was not renamed before
                going = self.path / f"{folder.name.partition('.')[0]}.{self._id}.{secrets.token_hex(4)}.partial"
                folder.rename(going)
            shutil.rmtree(going)
        except OSError as error:
            shutil.rmtree(going, ignore_errors=True)  # whatever else of it can be
            return [f"{going} cannot be removed ({error.strerror}); the next save tries again"]
        return []


def _sync(folder: Path) -> None:
    """Flush the names in a folder to disk; the contents of its files are there already."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class Contents:
    """The checkpoints of a folder, with the manifest of one of them.

    Attributes:
        folder: the folder.
        steps: the intact steps, oldest first.
        damaged: the damage of the others by step, one line per file.
        manifest: the manifest of the selected checkpoint; None if none is intact.
    """

    folder: Path
    steps: tuple[int, ...]
    damaged: Mapping[int, list[str]]
    manifest: Manifest | None

    @property
    def headline(self) -> str:
        """Summarize the checkpoints, and who wrote the selected one."""
        steps = ", ".join(map(str, self.steps)) or "none"
        lines = [f"{self.folder}: whole checkpoints of steps {steps}"]
        if self.manifest is not None:
            num, size = len(self.manifest.leaves), format_bytes(self.manifest.num_bytes)
            by = ", ".join(_printable(f"{name} {words}") for name, words in self.manifest.written_by.items())
            lines += [f"step {self.manifest.step}: {num} leaves, {size}", f"written by {by}", ""]
        return "\n".join(lines)

    @property
    def damage_lines(self) -> list[str]:
        """List all damage, one line per file."""
        return [_printable(f"step {step}: {line}") for step, lines in self.damaged.items() for line in lines]

    def table(self) -> Table:
        """Tabulate the leaves of the selected checkpoint."""
        leaves = self.manifest.leaves if self.manifest is not None else ()
        rows = [
            [_printable(leaf.path), str(leaf.shape), _printable(leaf.dtype), format_bytes(leaf.num_bytes)]
            for leaf in leaves
        ]
        return table(["path", "shape", "dtype", "bytes"], rows, right=("bytes",))

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {
            "folder": str(self.folder),
            "steps": list(self.steps),
            "damaged": {str(step): lines for step, lines in self.damaged.items()},
            "checkpoint": self.manifest.to_dict() if self.manifest is not None else None,
        }


def _printable(text: str) -> str:
    """Escape control characters: a checkpoint may come from anywhere, and a terminal executes escape sequences."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def contents(path: Path, step: int | None = None) -> Contents:
    """Inspect a run folder, a folder of checkpoints, or one checkpoint.

    Args:
        path: the folder.
        step: the checkpoint to select; None for the newest intact one.

    Raises:
        CheckpointError: there is no such folder, it has no checkpoint, or none of that step.
    """
    path = path.absolute()
    if path.name.isdecimal() and (path / MANIFEST).is_file():
        path, step = path.parent, int(path.name)
    folder = CheckpointFolder(path / "checkpoints" if (path / "checkpoints").is_dir() else path)
    steps = folder.present()
    if not steps or (step is not None and step not in steps):
        of = f" of step {step}; it has those of steps {', '.join(map(str, steps))}" if steps else ""
        raise CheckpointError(
            f"{folder.path} has no checkpoint{of}"
            "\n  fix: a run folder, the folder that checkpoints are saved to, or one checkpoint in it"
        )
    lines = {number: folder.damage(number, contents=True) for number in steps}
    whole = tuple(number for number in steps if not lines[number])
    damaged = {number: wrong for number, wrong in lines.items() if wrong}
    shown = step if step is not None else max(whole, default=steps[-1])
    manifest = read_manifest(folder.step_folder(shown))
    return Contents(folder.path, whole, damaged, None if isinstance(manifest, str) else manifest)
