"""`checkpoint.json`: what a checkpoint holds, who wrote it, and the files it must consist of. Read without JAX."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
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
        return {
            "format": _FORMAT,
            "step": self.step,
            "leaves": [{**asdict(leaf), "shape": list(leaf.shape)} for leaf in self.leaves],
            "files": {name: asdict(file) for name, file in self.files.items()},
            "written_by": dict(self.written_by),
        }

    @classmethod
    def from_dict(cls, data: Any) -> Manifest:
        """Read back what `to_dict` wrote; anything else is refused, since it may come from anywhere.

        Raises:
            ValueError: it was written by a later Outlay, or is no manifest; the first fault is named.
        """
        facts = _table(data, "the manifest", ("format", "step", "leaves", "files", "written_by"))
        if facts["format"] != _FORMAT or isinstance(facts["format"], bool):
            raise ValueError(f"format {facts['format']!r:.60} of a later Outlay; this one reads format {_FORMAT}")
        if not isinstance(facts["leaves"], list):
            raise ValueError("leaves is no list")
        leaves = tuple(_leaf(leaf, f"leaves[{number}]") for number, leaf in enumerate(facts["leaves"]))
        if len({leaf.path for leaf in leaves}) < len(leaves):
            raise ValueError("leaves has one path twice")
        files = {name: _file(name, file) for name, file in _table(facts["files"], "files").items()}
        if not files:
            raise ValueError("files is empty, and nothing would be checked")
        written_by = {
            _text(name, "written_by"): _text(words, f"written_by.{name}")
            for name, words in _table(facts["written_by"], "written_by").items()
        }
        return cls(_count(facts["step"], "step"), leaves, files, written_by)

    def write(self, folder: Path) -> None:
        """Write it into a checkpoint's folder, on disk before this returns."""
        with (folder / MANIFEST).open("w", encoding="utf-8") as file:
            json.dump(self.to_dict(), file, indent=1)
            file.flush()
            os.fsync(file.fileno())


def _leaf(data: Any, where: str) -> SavedLeaf:
    facts = _table(data, where, ("path", "shape", "dtype", "num_bytes"))
    if not isinstance(facts["shape"], list):
        raise ValueError(f"{where}.shape is no list")
    return SavedLeaf(
        _text(facts["path"], f"{where}.path"),
        tuple(_count(size, f"{where}.shape") for size in facts["shape"]),
        _text(facts["dtype"], f"{where}.dtype"),
        _count(facts["num_bytes"], f"{where}.num_bytes"),
    )


def _file(name: str, data: Any) -> SavedFile:
    parts = name.split("/")
    if not name.isprintable() or any(part in ("", ".", "..") for part in parts) or name == MANIFEST:
        raise ValueError(f"files names {name!r:.80}, which is no file inside of the checkpoint")
    facts = _table(data, f"files.{name}", ("num_bytes", "crc32"))
    crc32 = _count(facts["crc32"], f"files.{name}.crc32")
    return SavedFile(_count(facts["num_bytes"], f"files.{name}.num_bytes"), crc32)


def _table(data: Any, where: str, keys: Sequence[str] | None = None) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise ValueError(f"{where} is no object")
    if keys is not None and set(data) != set(keys):
        wrong = sorted(set(data) ^ set(keys))
        raise ValueError(f"{where} has other keys than {', '.join(keys)}: {', '.join(map(repr, wrong))[:80]}")
    return data


def _count(value: Any, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise ValueError(f"{where} is {value!r:.40}, no whole number from 0 on")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{where} is {value!r:.40}, no text")
    return value
