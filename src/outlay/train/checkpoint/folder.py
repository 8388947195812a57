"""The folder of a run's checkpoints: one folder a step, which has that name only once it is complete."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from pathlib import Path

from outlay.core.error_types import CheckpointError
from outlay.core.own_folder import MARK, OwnFolder, folder_id, mark
from outlay.train.checkpoint.integrity import ARRAYS, MANIFEST, Manifest, damaged_files, files_in, read_manifest

_KIND = "checkpoint folder"
_LISTED = 3


class CheckpointFolder:
    """Names, lists, completes and removes the checkpoints of one folder; knows nothing of arrays.

    The folder is marked, and so is each checkpoint that is written there, with the folder's own number: only what has
    it is ever replaced or removed.

    Args:
        path: the folder; it need not exist until something is saved.

    Attributes:
        own: the folder as one of ours; who saves takes it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.own = OwnFolder(path, _KIND, CheckpointError, lambda: "another folder, which is new or empty")

    def step_folder(self, step: int) -> Path:
        """Where the checkpoint of a step is."""
        return self.path / str(step)

    def present(self) -> list[int]:
        """The steps that have a checkpoint of Outlay, whole or damaged, oldest first; other folders are passed over."""
        if not self.path.is_dir():
            return []
        with self.own.as_error():
            names = os.listdir(self.path)
        steps = [int(name) for name in names if re.fullmatch(r"0|[1-9][0-9]*", name)]
        return sorted(step for step in steps if self._is_checkpoint(step))

    def damage(self, step: int, *, contents: bool) -> list[str]:
        """What is wrong with the checkpoint of a step, one line a file; `contents` reads every byte of it."""
        folder = self.step_folder(step)
        manifest = read_manifest(folder)
        if isinstance(manifest, str):
            return [manifest]
        if manifest.step != step:
            return [f"{folder} is the checkpoint of step {manifest.step}, in a folder named {step}"]
        return damaged_files(folder, manifest, contents=contents)

    def whole(self) -> list[int]:
        """The steps whose files are all there with their sizes, oldest first."""
        return [step for step in self.present() if not self.damage(step, contents=False)]

    def begin(self, step: int) -> list[str]:
        """Make the empty folder `partial` of a step; what killed runs left half-written goes.

        Returns:
            A line for everything that should have gone and did not.

        Raises:
            CheckpointError: the folder, or one of this step in it, is not ours; or another is writing to it.
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

    def partial(self, step: int) -> Path:
        """Where the checkpoint of a step is while it is being written; the number in the name says that it is ours."""
        return self.path / f"{step}.{self._id}.partial"

    def complete(self, partial: Path, manifest: Manifest) -> list[str]:
        """Make a `partial` folder the checkpoint of its step, in one move: before it there is none, after it all.

        Returns:
            A line for everything that should have gone and did not.
        """
        manifest.write(partial)
        final = self.step_folder(manifest.step)
        left = []
        if os.path.lexists(final):  # a damaged one: `save` refuses to replace a whole one, `begin` one that is not ours
            left = self._remove(manifest.step)
        partial.rename(final)
        _sync(self.path)
        # A save that failed may have had writers that came back to its folder after it had been removed.
        return [*left, *self._clear_partials()]

    def keep_last(self, keep: int) -> list[str]:
        """Remove all of ours that is older than the last `keep` whole checkpoints.

        Returns:
            A line for everything that should have gone and did not.
        """
        newest = self.whole()[-keep:]
        old = [step for step in self.present() if newest and step < newest[0] and self._is_ours(step)]
        return [line for step in old for line in self._remove(step)]

    def clear(self) -> list[str]:
        """Remove every checkpoint of ours; nothing else.

        Returns:
            A line for everything that should have gone and did not.
        """
        self.own.take()
        ours = [step for step in self.present() if self._is_ours(step)]
        return [*self._clear_partials(), *(line for step in ours for line in self._remove(step))]

    def discard(self, partial: Path) -> None:
        """Give back the disk space of a checkpoint that could not be written."""
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
        """Whether a folder holds a checkpoint of Outlay, written here or brought here."""
        folder = self.step_folder(step)
        return folder.is_dir() and (os.path.lexists(folder / MANIFEST) or self._is_ours(step))

    def _why_not_ours(self, step: int) -> str:
        """Why a folder of a step is not to be touched; empty where it is ours and holds nothing else."""
        folder = self.step_folder(step)
        if not self._is_ours(step):
            return "Outlay did not write it there"
        manifest = read_manifest(folder)
        listed = {MANIFEST, MARK, *(() if isinstance(manifest, str) else manifest.files)}
        strange = [
            name
            for name in files_in(folder)
            if name not in listed and not (isinstance(manifest, str) and name.startswith(f"{ARRAYS}/"))
        ]
        more = ", …" if len(strange) > _LISTED else ""
        return f"it holds what Outlay did not write: {', '.join(strange[:_LISTED])}{more}" if strange else ""

    def _clear_partials(self) -> list[str]:
        """Those of ours: of a save that did not end, and what could not be removed before."""
        ours = re.compile(rf"\d+\.{self._id}(\.[0-9a-f]+)?\.partial")
        with self.own.as_error():
            names = [name for name in os.listdir(self.path) if ours.fullmatch(name)]
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
        """Renamed first: a kill in between leaves nothing that looks like a checkpoint, and the name is free."""
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
    """Have the names in a folder on disk; the files in it are there already."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
