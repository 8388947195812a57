"""Is a checkpoint whole: is every file there, as long as it was written, with the bytes that were written."""

from __future__ import annotations

import concurrent.futures
import json
import os
import zlib
from collections.abc import Iterable
from pathlib import Path

from outlay.train.checkpoint.manifest import MANIFEST, Manifest, SavedFile

_BLOCK = 2**22


def read_manifest(folder: Path) -> Manifest | str:
    """The manifest of a checkpoint's folder; where it cannot be read, what is wrong with it."""
    path = folder / MANIFEST
    try:
        return Manifest.from_dict(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return f"{path} is missing"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{path} cannot be read: {type(error).__name__}: {error}"


def damaged_files(folder: Path, manifest: Manifest, *, contents: bool) -> list[str]:
    """What is wrong with the files of a checkpoint, one line a file; empty where it is whole.

    Args:
        folder: the checkpoint's folder.
        manifest: of this checkpoint.
        contents: read every byte and compare checksums too, not only sizes.
    """
    lines = [_wrong_size(folder / name, file) for name, file in manifest.files.items()]
    damaged = [line for line in lines if line]
    if damaged or not contents:
        return damaged
    sums = checksums(folder / name for name in manifest.files)
    return [
        f"{folder / name} has other bytes than were written: checksum {found:08x}, written {file.crc32:08x}"
        for (name, file), found in zip(manifest.files.items(), sums, strict=True)
        if found != file.crc32
    ]


def saved_files(folder: Path) -> dict[str, SavedFile]:
    """Every file below a checkpoint's folder, with size and checksum, by its path there."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): SavedFile(path.stat().st_size, crc32)
        for path, crc32 in zip(paths, checksums(paths), strict=True)
    }


def checksums(paths: Iterable[Path]) -> list[int]:
    """The CRC-32 of each file; several at a time, since both reading and summing let other threads run."""
    with concurrent.futures.ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        return list(pool.map(_checksum, paths))


def _checksum(path: Path) -> int:
    block, crc32 = memoryview(bytearray(_BLOCK)), 0
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(block):
            crc32 = zlib.crc32(block[:count], crc32)
    return crc32


def _wrong_size(path: Path, file: SavedFile) -> str:
    try:
        found = path.stat().st_size
    except FileNotFoundError:
        return f"{path} is missing"
    return "" if found == file.num_bytes else f"{path} has {found} bytes of {file.num_bytes}"
