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
            kind = next((words for is_kind, words in _KINDS if is_kind(mode)), "something else")
            raise OSError(errno.EINVAL, f"it is {kind}, not a regular file", os.fspath(path))
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


def read_text(path: str | os.PathLike[str], *, encoding: str = "utf-8", errors: str = "strict") -> str:
    """Return the text of a regular file.

    Raises:
        OSError: as `open_input`.
        UnicodeDecodeError: it is not text in this encoding.
    """
    with io.TextIOWrapper(open_input(path), encoding=encoding, errors=errors) as file:
        return file.read()
