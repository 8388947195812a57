"""Keep answers that took long to compute in the user's cache folder: small files that say that Outlay made them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import stat
import warnings
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outlay.core.output_file import open_plain, whole_file
from outlay.core.user_code import imported_files, is_library

MAX_BYTES = 2**28
"""The default size of a cache: some thousand compiled programs."""

_OUTLAY = Path(__file__).parents[1]
_MARKER = b"# Written by outlay as part of its cache; sha256 "
_ENDING = ".outlay"
_LONGEST = 2**30
"""Bytes of the largest entry, unpacked: no entry of ours unpacks from kilobytes to terabytes."""


def cache_folder() -> Path:
    """Return the folder of compiled programs: `$XDG_CACHE_HOME/outlay/compiled`, by default in `~/.cache`.

    A path that is not absolute is ignored, as the XDG base directory specification demands.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "outlay" / "compiled"


def key_of(*parts: object) -> str:
    """Return the name of an entry: a hash of everything that it depends on.

    >>> key_of("program", "h100") == key_of("program", "h200")
    False
    """
    return hashlib.sha256("\0".join(map(_in_full, parts)).encode()).hexdigest()


def _in_full(part: object) -> str:
    """Write a value with everything in it: the `repr` of many dataclasses is short."""
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        part = {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}
    if isinstance(part, Mapping):
        return str([(name, _in_full(value)) for name, value in part.items()])
    return str([*map(_in_full, part)]) if isinstance(part, list | tuple) else str(part)


def loaded_code() -> str:
    """Return a hash of the code that can change an answer from one call to the next, as a part of its key.

    It covers Outlay's own code and the user's modules that are imported now. Installed packages are not read: their
    versions belong into the key.
    """
    files = sorted({file for file in imported_files() if not is_library(file)})
    return hashlib.sha256("".join([_own_code(), *map(_hash_of, files)]).encode()).hexdigest()


@functools.cache
def _own_code() -> str:
    files = (file for ending in ("py", "toml") for file in _OUTLAY.rglob(f"*.{ending}"))
    return "".join(f"{file.relative_to(_OUTLAY)} {_hash_of(str(file))}" for file in sorted(files))


def _hash_of(file: str) -> str:
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError:
        return file


@dataclass(frozen=True)
class DiskCache:
    """Entries in a folder, one file each, named by what they depend on.

    Other files in the folder are neither read, nor overwritten, nor removed: a file is ours by its first line. That
    line also has a hash of the rest, so an entry that was cut off or changed counts as missing.

    Attributes:
        folder: the folder; it is made when the first entry is stored.
        max_bytes: its size limit; beyond it the least recently used entries are removed.
    """

    folder: Path
    max_bytes: int = MAX_BYTES

    def load(self, key: str) -> Any:
        """Read the JSON-ready data of a key; None if there is none, or it cannot be read."""
        path = self._path(key)
        try:
            with open_plain(path) as file:
                head, _, packed = file.read(self.max_bytes).partition(b"\n")
            if head != _MARKER + hashlib.sha256(packed).hexdigest().encode():
                return None
            unpacking = zlib.decompressobj()
            unpacked = unpacking.decompress(packed, _LONGEST)
            if not unpacking.eof:
                return None
            data = json.loads(unpacked)
        except (OSError, ValueError, zlib.error, RecursionError):
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # the least recently used entry is removed first
        return data

    def store(self, key: str, data: Any) -> None:
        """Store JSON-ready data; another process may store the same at the same time.

        If it cannot be stored, nothing happens: the answer is right without the cache.
        """
        packed = zlib.compress(json.dumps(data).encode())
        path = self._path(key)
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            if path.exists() and not _is_ours(path):
                return
            with whole_file(path) as unfinished:
                unfinished.write_bytes(_MARKER + hashlib.sha256(packed).hexdigest().encode() + b"\n" + packed)
            self._remove_oldest()

    def warn_if_read_only(self) -> None:
        """Warn if nothing can be stored; the answer is computed all the same."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if os.access(self.folder, os.W_OK):
                return
            reason = "it cannot be written to"
        except OSError as error:
            reason = error.strerror or str(error)
        what = f"compiled programs are not kept: {self.folder}: {reason}; the next call compiles them again"
        warnings.warn(f"{what}\n  fix: XDG_CACHE_HOME=FOLDER, one that can be written", stacklevel=3)

    def _remove_oldest(self) -> None:
        """Remove the least recently used entries until the rest is small enough."""
        entries = [(path, path.lstat()) for path in self.folder.glob(f"*{_ENDING}")]
        left = sum(entry.st_size for _, entry in entries)
        for path, entry in sorted(entries, key=lambda entry: entry[1].st_mtime_ns):
            if left <= self.max_bytes:
                return
            if stat.S_ISREG(entry.st_mode) and _is_ours(path):
                path.unlink(missing_ok=True)
                left -= entry.st_size

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}{_ENDING}"


def _is_ours(path: Path) -> bool:
    try:
        with open_plain(path) as file:
            return file.read(len(_MARKER)) == _MARKER
    except OSError:
        return False
