"""What a checkpoint must consist of, and whether it does: its manifest, and the files, sizes and checksums in it.

A checkpoint may come from anywhere. Nothing outside of its folder is read, and nothing but plain files in it: no link,
device or pipe is opened, whatever the manifest says. None of this needs JAX.
"""

from __future__ import annotations

import concurrent.futures
import io
import json
import os
import stat
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
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


_BLOCK = 2**22
_MOST_MANIFEST_BYTES = 2**28  # of a million leaves; a larger one is no manifest


def read_manifest(folder: Path) -> Manifest | str:
    """The manifest of a checkpoint's folder; where it cannot be read, what is wrong with it."""
    path = folder / MANIFEST
    try:
        with _opened(path) as file:
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
    """What is wrong with the files of a checkpoint, one line a file; empty where it is whole.

    Args:
        folder: the checkpoint's folder.
        manifest: of this checkpoint.
        contents: read every byte and compare checksums too, not only sizes.
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
    """Every file below a checkpoint's folder, with size and checksum, by its path there.

    Raises:
        OSError: one cannot be read.
    """
    there = sorted(files_in(folder).items())
    sums = _each(there, lambda item: _checksum(folder / item[0]))
    return {name: SavedFile(its.st_size, crc32) for (name, its), crc32 in zip(there, sums, strict=True)}


def files_in(folder: Path) -> dict[str, os.stat_result]:
    """All that is below a folder and is no folder itself, by its path there; a link to a folder is not followed.

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
    """What a function gives for each item; several at a time, since reading and summing let other threads run."""
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
    with _opened(path) as file:
        while count := file.readinto(block):
            crc32 = zlib.crc32(block[:count], crc32)
    return crc32


def _opened(path: Path) -> io.BufferedReader:
    """A plain file to read; opening waits for nobody at the other end of a pipe."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is no plain file")
    return os.fdopen(descriptor, "rb")


def _wrong_size(path: Path, its: os.stat_result | None, file: SavedFile) -> str:
    if its is None:
        return f"{path} is {'a folder' if path.is_dir() and not path.is_symlink() else 'missing'}"
    if not stat.S_ISREG(its.st_mode):
        return f"{path} is no plain file"
    size = its.st_size
    return "" if size == file.num_bytes else f"{path} has {size} bytes of {file.num_bytes}"
