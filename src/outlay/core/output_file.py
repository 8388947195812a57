"""Files that are written for a user: whole or not at all, and never in the place of one that Outlay did not make."""

from __future__ import annotations

import contextlib
import io
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from outlay.core.error_types import OutputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# How everything begins that Outlay writes: pages, traces, layouts and other files as TOML, pictures.
_OUR_BEGINNINGS = (
    re.compile(rb'\s*<!doctype html>.*<meta name="generator" content="outlay">', re.DOTALL),
    re.compile(rb'\{"otherData": \{"generator": "outlay"'),
    re.compile(rb"# (Chosen|Written) by `?outlay "),
    re.compile(rb"\x89PNG\r\n\x1a\n.*tEXtSoftware\0outlay", re.DOTALL),
    re.compile(rb"<\?xml .*<dc:title>outlay</dc:title>", re.DOTALL),
)
_BEGINNING = 4096
_PICTURES = {".png": {"Software": "outlay"}, ".svg": {"Creator": "outlay"}}
"""What pictures say of who made them, by the ending of their file; of others matplotlib cannot tell it."""


def check_writable(path: Path, *, force: bool = False) -> None:
    """Raise where a file cannot be written, or would replace one that Outlay did not make. Nothing is touched.

    To be asked before long work whose result goes to the file; `write_output` asks again.

    Args:
        path: the file.
        force: any file may be replaced.

    Raises:
        OutputError: it is somebody else's, or a folder; or its folder is not there or cannot be written to.
    """
    with _as_output_error(path):
        if path.is_dir():
            raise OutputError(f"{_named(path)} is a folder\n  fix: the name of a file")
        folder = path.resolve().parent
        if not folder.is_dir():
            raise OutputError(
                f"{path} cannot be written: there is no folder {path.parent}\n  fix: make it, or another name"
            )
        if not os.access(folder, os.W_OK):
            raise OutputError(f"{path} cannot be written: nothing may be written to {folder}\n  fix: another folder")
        if not force and path.is_file() and not is_ours(path):
            raise OutputError(
                f"{path} exists, and Outlay did not make it; nothing was written"
                "\n  fix: another name, or --force to replace it (force=True in Python)"
            )


def is_ours(path: Path) -> bool:
    """Whether a file begins as those that Outlay makes do, or holds nothing that could be lost."""
    with path.open("rb") as file:
        beginning = file.read(_BEGINNING)
    return not beginning or any(ours.match(beginning) for ours in _OUR_BEGINNINGS)


def write_output(path: Path, content: str | bytes, *, force: bool = False) -> None:
    """Write a file that Outlay may make anew but no other.

    Args:
        path: the file.
        content: what it holds; it begins with what tells that Outlay made it, or only `force` replaces it later.
        force: replace any file.

    Raises:
        OutputError: it would replace a file that Outlay did not make, or cannot be written. What was there is there.
    """
    check_writable(path, force=force)
    with _as_output_error(path):
        write_whole(path, content)


def write_picture(path: Path, figure: Figure, *, force: bool = False) -> None:
    """Write a picture in the format that its ending says; otherwise as `write_output`.

    Raises:
        OutputError: it would replace a file that Outlay did not make, or cannot be written; or there is no such format.
    """
    formats = figure.canvas.get_supported_filetypes()
    if path.suffix[1:].lower() not in formats:
        raise OutputError(
            f"{path} ends in {path.suffix!r}, which is no format of pictures"
            f"\n  fix: a name that ends in {', '.join(f'.{name}' for name in sorted(formats))}"
        )
    check_writable(path, force=force)
    write_output(path, picture_bytes(figure, path.suffix.lower()), force=force)


def picture_bytes(figure: Figure, ending: str = ".png") -> bytes:
    """A picture as the content of a file with this ending; it says that Outlay made it."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format=ending[1:], dpi=150, metadata=_PICTURES.get(ending))
    return drawn.getvalue()


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file in one move: what reads it, or is there after a failure, is the whole of the old or of the new one.

    Raises:
        OSError: it cannot be written; what was there is there.
    """
    with whole_file(path) as unfinished:
        unfinished.write_bytes(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A name beside a file to write to, which becomes the file at the end; after an exception nothing is left of it.

    Args:
        path: the file. A link stays, and what it leads to is replaced; a device or a pipe is written to as it is.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        yield path
        return
    unfinished = path.with_name(f".{path.stem[:100]}.{secrets.token_hex(4)}.partial{path.suffix}")
    try:
        yield unfinished
        with unfinished.open("rb") as file:
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, unfinished)
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _as_output_error(path: Path) -> Iterator[None]:
    try:
        yield
    except OutputError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
        reason = getattr(error, "strerror", None) or error
        raise OutputError(f"{_named(path)} cannot be written: {reason}\n  fix: another name or folder") from error


def _named(path: Path) -> str:
    return repr(str(path)) if not str(path).isprintable() else str(path)
