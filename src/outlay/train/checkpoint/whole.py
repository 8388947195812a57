"""Is a checkpoint whole: is every file there and no other, as long as it was written, with the bytes that were written.

A checkpoint may come from anywhere. Nothing outside of its folder is read, and nothing but plain files in it: no link,
device or pipe is opened, whatever the manifest says.
"""

from __future__ import annotations

import concurrent.futures
import io
import json
import os
import stat
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from outlay.train.checkpoint.manifest import MANIFEST, Manifest, SavedFile

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

    found = {}
    for path, folders, files in os.walk(folder, onerror=refuse):
        links = [name for name in folders if os.path.islink(os.path.join(path, name))]
        for name in (*files, *links):
            whole = Path(path, name)
            found[whole.relative_to(folder).as_posix()] = os.lstat(whole)
    return found


def _each(items: Iterable[tuple[str, Any]], do: Callable[[tuple[str, Any]], Any]) -> list[Any]:
    """What a function gives for each item; several at a time, since reading and summing let other threads run."""
    with concurrent.futures.ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        return list(pool.map(do, items))


def _other_bytes(path: Path, file: SavedFile) -> str:
    try:
        found = _checksum(path)
    except OSError as error:
        return f"{path} cannot be read: {error.strerror or error}"
    if found == file.crc32:
        return ""
    return f"{path} has other bytes than were written: checksum {found:08x}, written {file.crc32:08x}"


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
    found = its.st_size
    return "" if found == file.num_bytes else f"{path} has {found} bytes of {file.num_bytes}"
