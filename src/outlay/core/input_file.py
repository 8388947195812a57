"""Open files that a user names, or that a file from elsewhere names: regular ones only.

A pipe without a writer is waited for without end, and a device such as /dev/zero never ends. Links are followed: a user
may name one. What lies in a folder that others write to is opened with `output_file.open_plain`, which follows none.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Callable

_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def open_input(path: str | os.PathLike[str]) -> io.BufferedReader:
    """Open a file for reading bytes.

    Raises:
        OSError: it is not a regular file, is missing, or cannot be read; `strerror` says why.
    """
    # O_NONBLOCK: whether it is a pipe is only certain once it is open.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, f"it is {_kind(mode)}, not a regular file", os.fspath(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def check_input(path: str | os.PathLike[str]) -> None:
    """Raise unless a path is a regular file that can be read: for libraries that open it themselves.

    Raises:
        OSError: as `open_input`.
    """
    open_input(path).close()


def check_folder(path: str | os.PathLike[str]) -> None:
    """Raise unless a folder holds only folders and regular files, at any depth: for libraries that open them.

    A chunk of an array that is a pipe would be waited for without end. Kinds are read from the folders' entries, so
    that only links are looked at one by one.

    Raises:
        OSError: something in it is neither, or a folder cannot be read; `strerror` says how many and names the first.
    """
    odd: list[str] = []
    waiting, seen = [os.fspath(path)], set()
    while waiting:
        folder = waiting.pop()
        facts = os.stat(folder)
        if (facts.st_dev, facts.st_ino) in seen:  # a link to a folder above
            continue
        seen.add((facts.st_dev, facts.st_ino))
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir():
                    waiting.append(entry.path)
                elif not entry.is_file() and os.path.exists(entry.path):  # a link to nothing is a missing file
                    odd.append(entry.path)
    if odd:
        mode = os.stat(first := min(odd)).st_mode
        many = f", as are {len(odd) - 1} more" if len(odd) > 1 else ""
        what = f"{os.path.relpath(first, path)} in it is {_kind(mode)}, not a regular file{many}"
        raise OSError(errno.EINVAL, what, os.fspath(path))


def _kind(mode: int) -> str:
    return next((words for is_kind, words in _KINDS if is_kind(mode)), "something else")


def read_text(path: str | os.PathLike[str], *, encoding: str = "utf-8", errors: str = "strict") -> str:
    """Return the text of a regular file.

    Raises:
        OSError: as `open_input`.
        UnicodeDecodeError: it is not text in this encoding.
    """
    with io.TextIOWrapper(open_input(path), encoding=encoding, errors=errors) as file:
        return file.read()
