"""Verify a checkpoint against its manifest: files, sizes and checksums.

A checkpoint may come from anywhere. Nothing outside its folder is read, and only regular files in it: no link, device
or pipe is opened, whatever the manifest says. None of this needs JAX.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import stat
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from outlay.core.output_file import open_plain

MANIFEST = "checkpoint.json"
ARRAYS = "arrays"
"""The folder of the arrays, next to the manifest: a plain Orbax checkpoint."""

_FORMAT = 1


@dataclass(frozen=True)
class SavedLeaf:
    """A leaf of a saved state.

    Attributes:
        path: the dotted path.
        shape: the global shape.
        dtype: the name of the dtype.
        num_bytes: the bytes of the global array.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    num_bytes: int


@dataclass(frozen=True)
class SavedFile:
    """A file of a checkpoint as it was written."""

    num_bytes: int
    crc32: int


@dataclass(frozen=True)
class Manifest:
    """The description of a checkpoint, without its arrays.

    Attributes:
        step: the global step after which the state was saved.
        leaves: the leaves of the state.
        files: all other files of the checkpoint, by relative path.
        written_by: versions, host, time and devices, for people.
    """

    step: int
    leaves: tuple[SavedLeaf, ...]
    files: Mapping[str, SavedFile]
    written_by: Mapping[str, str]

    @property
    def num_bytes(self) -> int:
        """The bytes of the state; every array counts once."""
        return sum(leaf.num_bytes for leaf in self.leaves)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {
            "format": _FORMAT,
            "step": self.step,
            "leaves": [{**asdict(leaf), "shape": list(leaf.shape)} for leaf in self.leaves],
            "files": {name: asdict(file) for name, file in self.files.items()},
            "written_by": dict(self.written_by),
        }

    @classmethod
    def from_dict(cls, data: Any) -> Manifest:
        """Read the result of `to_dict`; validates everything, since a manifest may come from anywhere.

        Raises:
            ValueError: a later version of Outlay wrote it, or it is not a manifest; the message names the first fault.
        """
        facts = _table(data, "the manifest", ("format", "step", "leaves", "files", "written_by"))
        if facts["format"] != _FORMAT or isinstance(facts["format"], bool):
            raise ValueError(f"format {facts['format']!r:.60} of a later Outlay; this one reads format {_FORMAT}")
        if not isinstance(facts["leaves"], list):
            raise ValueError("leaves is not a list")
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
        """Write the manifest into a checkpoint's folder, and flush it to disk."""
        with (folder / MANIFEST).open("w", encoding="utf-8") as file:
            json.dump(self.to_dict(), file, indent=1)
            file.flush()
            os.fsync(file.fileno())


def _leaf(data: Any, where: str) -> SavedLeaf:
    facts = _table(data, where, ("path", "shape", "dtype", "num_bytes"))
    if not isinstance(facts["shape"], list):
        raise ValueError(f"{where}.shape is not a list")
    return SavedLeaf(
        _text(facts["path"], f"{where}.path"),
        tuple(_count(size, f"{where}.shape") for size in facts["shape"]),
        _text(facts["dtype"], f"{where}.dtype"),
        _count(facts["num_bytes"], f"{where}.num_bytes"),
    )


def _file(name: str, data: Any) -> SavedFile:
    parts = name.split("/")
    if not name.isprintable() or any(part in ("", ".", "..") for part in parts) or name == MANIFEST:
        raise ValueError(f"files names {name!r:.80}, which is not a file inside of the checkpoint")
    facts = _table(data, f"files.{name}", ("num_bytes", "crc32"))
    crc32 = _count(facts["crc32"], f"files.{name}.crc32")
    return SavedFile(_count(facts["num_bytes"], f"files.{name}.num_bytes"), crc32)


def _table(data: Any, where: str, keys: Sequence[str] | None = None) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise ValueError(f"{where} is not an object")
    if keys is not None and set(data) != set(keys):
        wrong = sorted(set(data) ^ set(keys))
        raise ValueError(f"{where} has other keys than {', '.join(keys)}: {', '.join(map(repr, wrong))[:80]}")
    return data


def _count(value: Any, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise ValueError(f"{where} is {value!r:.40}, not a whole number from 0 on")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{where} is {value!r:.40}, not text")
    return value


_BLOCK = 2**22
_MOST_MANIFEST_BYTES = 2**28  # of a million leaves; a larger one is not a manifest


def read_manifest(folder: Path) -> Manifest | str:
    """Read the manifest of a checkpoint's folder, or say why it cannot be read."""
    path = folder / MANIFEST
    try:
        with open_plain(path) as file:
            text = file.read(_MOST_MANIFEST_BYTES + 1)
        if len(text) > _MOST_MANIFEST_BYTES:
            return f"{path} cannot be read: it has more than {_MOST_MANIFEST_BYTES:,} bytes"
        return Manifest.from_dict(json.loads(text))
    except FileNotFoundError:
        return f"{path} is missing"
    except OSError as error:
        return f"{path} cannot be read: {error.strerror or error}"
    except RecursionError:
        return f"{path} cannot be read: it is nested too deeply"
    except ValueError as error:
        return f"{path} cannot be read: {type(error).__name__}: {error}"


def damaged_files(folder: Path, manifest: Manifest, *, contents: bool) -> list[str]:
    """List the damaged files of a checkpoint, one line per file; empty if it is intact.

    Args:
        folder: the checkpoint's folder.
        manifest: the manifest of this checkpoint.
        contents: compare checksums too, not only sizes.
    """
    try:
        there = files_in(folder)
    except OSError as error:
        return [f"{folder} cannot be read: {error.strerror or error}"]
    lines = [_wrong_size(folder / name, there.get(name), file) for name, file in manifest.files.items()]
    damaged = [line for line in lines if line]
    others = there.keys() - manifest.files.keys() - {MANIFEST}
    damaged += [f"{folder / name} is not among the files that were written" for name in sorted(others)]
    if damaged or not contents:
        return damaged
    lines = _each(manifest.files.items(), lambda item: _other_bytes(folder / item[0], item[1]))
    return [line for line in lines if line]


def saved_files(folder: Path) -> dict[str, SavedFile]:
    """Compute the size and the checksum of every file in a checkpoint's folder, by relative path.

    Raises:
        OSError: a file cannot be read.
    """
    there = sorted(files_in(folder).items())
    sums = _each(there, lambda item: _checksum(folder / item[0]))
    return {name: SavedFile(its.st_size, crc32) for (name, its), crc32 in zip(there, sums, strict=True)}


def files_in(folder: Path) -> dict[str, os.stat_result]:
    """List everything in a folder that is not itself a folder, by relative path; links to folders are not followed.

    Raises:
        OSError: a folder in it cannot be read.
    """

    def refuse(error: OSError) -> None:
        raise error

    entries = {}
    for path, folders, files in os.walk(folder, onerror=refuse):
        links = [name for name in folders if os.path.islink(os.path.join(path, name))]
        for name in (*files, *links):
            whole = Path(path, name)
            entries[whole.relative_to(folder).as_posix()] = os.lstat(whole)
    return entries


def _each(items: Iterable[tuple[str, Any]], do: Callable[[tuple[str, Any]], Any]) -> list[Any]:
    """Map a function over items in threads, since reading and computing checksums release the GIL."""
    with concurrent.futures.ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        return list(pool.map(do, items))


def _other_bytes(path: Path, file: SavedFile) -> str:
    try:
        checksum = _checksum(path)
    except OSError as error:
        return f"{path} cannot be read: {error.strerror or error}"
    if checksum == file.crc32:
        return ""
    return f"{path} has other bytes than were written: checksum {checksum:08x}, written {file.crc32:08x}"


def _checksum(path: Path) -> int:
    block, crc32 = memoryview(bytearray(_BLOCK)), 0
    with open_plain(path) as file:
        while count := file.readinto(block):
            crc32 = zlib.crc32(block[:count], crc32)
    return crc32


def _wrong_size(path: Path, its: os.stat_result | None, file: SavedFile) -> str:
    if its is None:
        return f"{path} is {'a folder' if path.is_dir() and not path.is_symlink() else 'missing'}"
    if not stat.S_ISREG(its.st_mode):
        return f"{path} is not a plain file"
    size = its.st_size
    return "" if size == file.num_bytes else f"{path} has {size} bytes of {file.num_bytes}"
