"""Write files for a user: completely or not at all, and never over a file that Outlay did not make."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import secrets
import shutil
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from outlay.core.error_types import OutlayError, OutputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _png_text(checksum: int) -> bytes:
    chunk = b"tEXtChecksum\0%08x" % checksum
    return (len(chunk) - 4).to_bytes(4) + chunk + zlib.crc32(chunk).to_bytes(4)


# How every file that Outlay writes begins (pages, traces, layouts and other TOML, pictures), and what is put there when
# it is written: the checksum of all the rest, by which a file that somebody has edited since is known.
_OUR_BEGINNINGS = (
    (
        re.compile(rb'\s*<!doctype html>.*?<meta name="generator" content="outlay">', re.DOTALL),
        b'<meta name="checksum" content="%08x">'.__mod__,
    ),
    (re.compile(rb'\{"otherData": \{"generator": "outlay"'), b', "checksum": "%08x"'.__mod__),
    (re.compile(rb"# (Chosen|Written) by `?outlay [^\n]*\n"), b"# Checksum: %08x\n".__mod__),
    (re.compile(rb"\x89PNG\r\n\x1a\n.*?tEXtSoftware\0outlay.{4}", re.DOTALL), _png_text),
    (re.compile(rb"<\?xml .*?<dc:title>outlay</dc:title>", re.DOTALL), b"<!-- checksum %08x -->".__mod__),
)
_BEGINNING = 4096
_PICTURES = {".png": {"Software": "outlay"}, ".svg": {"Creator": "outlay"}}
"""The metadata that marks a picture as Outlay's, by file extension; matplotlib has none for other formats."""


def real_path(path: Path | str) -> Path:
    """Return where a path leads, whole and without links; what it names may be missing.

    Raises:
        OSError: its links lead in a circle, which `Path.resolve` calls a RuntimeError, or nothing at all.
    """
    real = Path(os.path.realpath(path))
    if real.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    return real


def check_writable(path: Path, *, force: bool = False) -> None:
    """Raise unless a file can be written without replacing one that Outlay did not make. Nothing is touched.

    Call it before long work whose result goes to the file; `write_output` checks again.

    Args:
        path: the file.
        force: allow any file to be replaced.

    Raises:
        OutputError: the file belongs to somebody else, or is a folder; or its folder is missing or not writable.
    """
    with _as_output_error(path):
        if path.is_dir():
            raise OutputError(f"{_named(path)} is a folder\n  fix: give the name of a file")
        folder = real_path(path).parent
        if not folder.is_dir():
            raise OutputError(
                f"{path} cannot be written: there is no folder {path.parent}\n  fix: create it, or give another name"
            )
        if not os.access(folder, os.W_OK):
            raise OutputError(f"{path} cannot be written: {folder} is not writable\n  fix: choose another folder")
        if not force and path.is_file() and (why := _why_not_ours(path.read_bytes())):
            raise OutputError(
                f"{path} exists, and {why}; nothing was written"
                "\n  fix: choose another name, or replace it with --force (force=True in Python)"
            )


def _why_not_ours(content: bytes) -> str:
    """Say why a file is somebody's own: it is not as Outlay has written it; empty if it is, or holds nothing."""
    if content and _mark_of(content) is None:
        return "Outlay did not make it"
    is_as_written = not content or content == _with_checksum(_without_checksum(content))
    return "" if is_as_written else "it was edited since Outlay made it"


def _mark_of(content: bytes) -> tuple[int, Callable[[int], bytes]] | None:
    """Return where the mark of Outlay ends in a file, and what writes the checksum that follows; None without one."""
    beginning = content[:_BEGINNING]
    marks = ((pattern.match(beginning), form) for pattern, form in _OUR_BEGINNINGS)
    return next(((mark.end(), form) for mark, form in marks if mark), None)


def _with_checksum(content: bytes) -> bytes:
    """Put the checksum of a content behind its mark; a content without a mark stays as it is."""
    mark = _mark_of(content)
    if mark is None:
        return content
    end, form = mark
    return content[:end] + form(zlib.crc32(content)) + content[end:]


def _without_checksum(content: bytes) -> bytes:
    mark = _mark_of(content)
    if mark is None:
        return content
    end, form = mark
    return content[:end] + content[end + len(form(0)) :]


def write_output(path: Path, content: str | bytes, *, force: bool = False) -> None:
    """Write a file, replacing only one that Outlay made.

    Args:
        path: the file.
        content: what to write. Unless it begins with a mark of Outlay, only `force` can replace it later.
        force: replace any file.

    Raises:
        OutputError: it would replace a file that Outlay did not make, or cannot be written. The old file is untouched.
    """
    check_writable(path, force=force)
    with _as_output_error(path):
        write_whole(path, _with_checksum(content.encode() if isinstance(content, str) else content))


def write_picture(path: Path, figure: Figure, *, force: bool = False) -> None:
    """Write a picture in the format of its file extension.

    Raises:
        OutputError: it would replace a file that Outlay did not make, or cannot be written; or there is no such format.
    """
    formats = figure.canvas.get_supported_filetypes()
    if path.suffix[1:].lower() not in formats:
        raise OutputError(
            f"{path} ends in {path.suffix!r}, which is not a picture format"
            f"\n  fix: choose a name that ends in {', '.join(f'.{name}' for name in sorted(formats))}"
        )
    check_writable(path, force=force)
    write_output(path, picture_bytes(figure, path.suffix.lower()), force=force)


def picture_bytes(figure: Figure, ending: str = ".png") -> bytes:
    """Return a picture as the content of a file with this extension, marked as made by Outlay."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format=ending[1:], dpi=150, metadata=_PICTURES.get(ending))
    return drawn.getvalue()


def write_whole(path: Path, content: str | bytes, *, through_links: bool = True) -> None:
    """Write a file atomically: a reader, or a failure, finds either the old file or the new one.

    Args:
        path: the file.
        content: what to write.
        through_links: as `whole_file` takes it.

    Raises:
        OSError: it cannot be written; the old file is untouched.
    """
    with whole_file(path, through_links=through_links) as unfinished:
        unfinished.write_bytes(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def whole_file(path: Path, *, through_links: bool = True) -> Iterator[Path]:
    """Yield a temporary name beside a file; it becomes the file at the end, and is removed after an exception.

    Args:
        path: the file.
        through_links: as for a file that a user names: a link stays and its target is replaced, and a device or a pipe
            is written to directly. Otherwise, in a folder that anybody may have filled, a link itself is replaced.
    """
    if through_links:
        path = real_path(path)
        if path.exists() and not path.is_file():
            yield path
            return
    # The extension stays at the end: matplotlib and NumPy choose the format by it, or append one.
    # Cut, because most file systems take names of at most 255 bytes.
    unfinished = path.with_name(f".{path.stem[:100]}.{secrets.token_hex(4)}.partial{path.suffix}")
    try:
        yield unfinished
        # Without fsync, the new name may after a crash lead to an empty file.
        with unfinished.open("rb") as file:
            os.fsync(file.fileno())
        if path.exists() and not path.is_symlink():
            shutil.copymode(path, unfinished)
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def raising(error_of: Callable[[str], OutlayError]) -> Iterator[None]:
    """Turn an OSError in this block into an error of Outlay; other errors stay.

    Args:
        error_of: makes the error of the reason in words.
    """
    try:
        yield
    except OutlayError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
        raise error_of(getattr(error, "strerror", None) or str(error)) from error


def _as_output_error(path: Path) -> AbstractContextManager[None]:
    return raising(
        lambda why: OutputError(f"{_named(path)} cannot be written: {why}\n  fix: choose another name or folder")
    )


def open_plain(path: Path) -> io.BufferedReader:
    """Open a regular file for reading, without following a link or waiting for a pipe: anybody may have made it.

    Raises:
        OSError: it is something else, or cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is not a plain file")
        return os.fdopen(descriptor, "rb")
    except BaseException:  # a descriptor of a folder, say, would stay open
        os.close(descriptor)
        raise


def _named(path: Path) -> str:
    return repr(str(path)) if not str(path).isprintable() else str(path)
