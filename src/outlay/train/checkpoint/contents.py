"""Inspect a folder of checkpoints without devices: list them, verify their checksums, describe them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from outlay.core.error_types import CheckpointError
from outlay.core.quantities import format_bytes
from outlay.core.table import table
from outlay.train.checkpoint.folder import CheckpointFolder
from outlay.train.checkpoint.integrity import MANIFEST, Manifest, read_manifest


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
        listed = ", ".join(map(str, self.steps)) or "none"
        lines = [f"{self.folder}: whole checkpoints of steps {listed}"]
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
