"""The folder of a run's checkpoints: one folder a step, which has that name only once it is complete."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from outlay.train.checkpoint.manifest import Manifest
from outlay.train.checkpoint.whole import damaged_files, read_manifest

_PARTIAL = ".partial"


class CheckpointFolder:
    """Names, lists, completes and removes the checkpoints of one folder; knows nothing of arrays.

    Args:
        path: the folder; it need not exist until something is saved.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def step_folder(self, step: int) -> Path:
        """Where the checkpoint of a step is."""
        return self.path / str(step)

    def found(self) -> list[int]:
        """The steps that have a folder, whole or damaged, oldest first."""
        if not self.path.is_dir():
            return []
        return sorted(int(entry.name) for entry in self.path.iterdir() if entry.name.isdecimal() and entry.is_dir())

    def damage(self, step: int, *, contents: bool) -> list[str]:
        """What is wrong with the checkpoint of a step, one line a file; `contents` reads every byte of it."""
        folder = self.step_folder(step)
        manifest = read_manifest(folder)
        return [manifest] if isinstance(manifest, str) else damaged_files(folder, manifest, contents=contents)

    def whole(self) -> list[int]:
        """The steps whose files are all there with their sizes, oldest first."""
        return [step for step in self.found() if not self.damage(step, contents=False)]

    def begin(self, step: int) -> None:
        """Make the empty folder `partial` of a step; what killed runs left half-written goes."""
        self.path.mkdir(parents=True, exist_ok=True)
        for left in self.path.glob(f"*{_PARTIAL}"):
            shutil.rmtree(left)
        self.partial(step).mkdir()

    def partial(self, step: int) -> Path:
        """Where the checkpoint of a step is while it is being written."""
        return self.path / f"{step}{_PARTIAL}"

    def discard(self, partial: Path) -> None:
        """Give back the disk space of a checkpoint that could not be written."""
        shutil.rmtree(partial, ignore_errors=True)

    def complete(self, partial: Path, manifest: Manifest) -> None:
        """Make a `partial` folder the checkpoint of its step, in one move: before it there is none, after it all."""
        manifest.write(partial)
        final = self.step_folder(manifest.step)
        if final.exists():  # a damaged one: `save` refuses to replace a whole one
            self._remove(final)
        partial.rename(final)
        _sync(self.path)

    def keep_last(self, keep: int) -> None:
        """Remove all that is older than the last `keep` whole checkpoints."""
        kept = self.whole()[-keep:]
        for step in self.found():
            if kept and step < kept[0]:
                self._remove(self.step_folder(step))

    def _remove(self, folder: Path) -> None:
        """Renamed first, so that a kill in between leaves no folder that looks like a checkpoint."""
        going = folder.with_name(f"{folder.name}.old{_PARTIAL}")
        folder.rename(going)
        shutil.rmtree(going)


def _sync(folder: Path) -> None:
    """Have the names in a folder on disk; the files in it are there already."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
