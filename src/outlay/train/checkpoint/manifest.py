"""`checkpoint.json`: what a checkpoint holds, who wrote it, and the files it must consist of. Read without JAX."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MANIFEST = "checkpoint.json"
ARRAYS = "arrays"
"""The folder beside it that holds the arrays: a plain Orbax checkpoint."""

_FORMAT = 1


@dataclass(frozen=True)
class SavedLeaf:
    """One leaf of the state that was saved.

    Attributes:
        path: dotted path.
        shape: global shape.
        dtype: name of the dtype.
        num_bytes: of the whole array, counted once.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    num_bytes: int


@dataclass(frozen=True)
class SavedFile:
    """One file of a checkpoint, as it was written.

    Attributes:
        num_bytes: its size.
        crc32: the checksum of its bytes.
    """

    num_bytes: int
    crc32: int


@dataclass(frozen=True)
class Manifest:
    """All about one checkpoint but the arrays themselves.

    Attributes:
        step: the global step after which the state was saved.
        leaves: the leaves of the state.
        files: every other file of the checkpoint, by its path below the checkpoint's folder.
        written_by: program versions, host, time and devices, in words, for people.
    """

    step: int
    leaves: tuple[SavedLeaf, ...]
    files: Mapping[str, SavedFile]
    written_by: Mapping[str, str]

    @property
    def num_bytes(self) -> int:
        """Bytes of the state, every array counted once."""
        return sum(leaf.num_bytes for leaf in self.leaves)

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready data."""
        return {"format": _FORMAT, **asdict(self), "files": {name: asdict(file) for name, file in self.files.items()}}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Manifest:
        """Read back what `to_dict` wrote.

        Raises:
            ValueError: it was written by a later Outlay.
        """
        if data["format"] != _FORMAT:
            raise ValueError(f"format {data['format']} of a later Outlay; this one reads format {_FORMAT}")
        return cls(
            step=data["step"],
            leaves=tuple(SavedLeaf(**{**leaf, "shape": tuple(leaf["shape"])}) for leaf in data["leaves"]),
            files={name: SavedFile(**file) for name, file in data["files"].items()},
            written_by=data["written_by"],
        )

    def write(self, folder: Path) -> None:
        """Write it into a checkpoint's folder, on disk before this returns."""
        with (folder / MANIFEST).open("w", encoding="utf-8") as file:
            json.dump(self.to_dict(), file, indent=1)
            file.flush()
            os.fsync(file.fileno())
