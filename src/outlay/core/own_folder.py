"""Folders that Outlay made: marked as its own, with a list of what it wrote there, and locked for one writer."""

from __future__ import annotations

import codecs
import contextlib
import datetime
import errno
import fcntl
import os
import re
import secrets
import socket
import stat
import warnings
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from outlay.core.error_types import CheckpointWarning, OutlayError
from outlay.core.output_file import open_plain, raising
from outlay.core.quantities import counted, listed

MARK = "outlay.txt"
"""The file that marks a folder. Its first line says what the folder is; the others are only ever added to."""

_FIRST_LINE = re.compile(r"Outlay (?P<kind>[a-z0-9 ]+) (?P<id>[0-9a-f]{8}): .*")
_HELD = {errno.EAGAIN, errno.EACCES}  # file systems differ in the error for a lock that another process holds
_MOST_BYTES = 2**20  # of a mark that are read: anybody may have written the file
# O_NOFOLLOW: in a folder that others can write to, the mark could be a link to a file elsewhere.
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
_open: weakref.WeakSet[OwnFolder] = weakref.WeakSet()


class OwnFolder:
    """A folder that Outlay writes to: new or empty and marked now, or marked before.

    Whoever writes takes the folder first. It stays locked until it is released or the process ends, however it ends:
    the kernel drops the lock, so no stale lock file has to be removed. Readers take no lock.

    Args:
        path: the folder.
        kind: what it is, such as "run folder".
        error: the class of the errors that it raises.
        fix: what to do if the folder cannot be used.
    """

    def __init__(self, path: Path, kind: str, error: type[OutlayError], fix: Callable[[], str]) -> None:
        self.path = path
        self._kind, self._error, self._fix = kind, error, fix
        self._descriptor: int | None = None
        self._close: Callable[[], object] = lambda: None

    @property
    def id(self) -> str | None:
        """The id that tells the folder from others; None unless it is marked as one of this kind."""
        return folder_id(self.path, self._kind)

    def check_owned(self) -> None:
        """Raise unless the folder may be written to: marked as one of this kind, empty, or not there yet.

        Raises:
            OutlayError: of the class given.
        """
        with self.as_error():
            try:
                os.lstat(self.path)
            except FileNotFoundError:
                return
            if not self.path.is_dir():
                raise self._error(f"{self.path} is a file, not a folder\n  fix: {self._fix()}")
            entries = sorted(entry.name for entry in self.path.iterdir())
            if self.id is None and entries and not self._is_hardly_begun(entries):
                raise self._error(
                    f"{self.path} is not a {self._kind} of Outlay: it holds "
                    f"{counted(len(entries), 'entry', 'entries')} ({listed(entries, 6)}) and no {MARK} that says so"
                    f"\n  nothing in it was touched\n  fix: {self._fix()}"
                )

    def take(self) -> None:
        """Lock the folder for this object, and mark it as Outlay's if it is new.

        Raises:
            OutlayError: of the class given: it is not Outlay's, or another process or object is writing to it.
        """
        if self._descriptor is not None:
            return
        self.check_owned()
        with self.as_error():
            self.path.mkdir(parents=True, exist_ok=True)
            self._hold(os.open(self.path / MARK, _FLAGS, 0o666))
            _open.add(self)
            try:
                self._lock()
                self._make_own()
                if not os.fstat(self._own_descriptor()).st_size:
                    self._append(_first_line(self._kind, secrets.token_hex(4)))
            except BaseException:
                self.release()
                raise
            with contextlib.suppress(OSError):  # only used in the error message of another process
                self._append(f"\nin use since {_now()} by process {os.getpid()} on {socket.gethostname()}")

    def release(self) -> None:
        """Unlock the folder."""
        self._descriptor = None
        self._close()

    def names(self) -> set[str]:
        """Return the names that Outlay has written there; a path, which somebody else must have added, is ignored."""
        lines = _lines(self.path) if self.id is not None else []
        written = {line.removeprefix("wrote ") for line in lines if line.startswith("wrote ")}
        return {name for name in written if name not in ("", ".", "..") and not set(name) & set("/\\\0")}

    def will_write(self, name: str) -> None:
        """Record the name of a file or folder that is about to be written.

        Raises:
            OutlayError: of the class given: the name exists and Outlay did not write it.
        """
        if name in self.names():
            return
        if os.path.lexists(self.path / name):
            raise self._error(
                f"{self.path / name} is in the way: Outlay has to write this name and did not make what is there"
                "\n  fix: rename it, or choose another folder"
            )
        self.take()
        assert self._descriptor is not None
        with self.as_error():
            self._append(f"\nwrote {name}")

    def as_error(self) -> AbstractContextManager[None]:
        """Raise file system errors as errors of the class given."""
        fix = "give permission, free some space, or choose another folder"
        return raising(lambda why: self._error(f"{self.path} cannot be used: {why}\n  fix: {fix}"))

    def _is_hardly_begun(self, entries: list[str]) -> bool:
        """Return whether the folder holds only an empty mark: a process was killed while it made it."""
        its = os.lstat(self.path / entries[0])
        return entries == [MARK] and stat.S_ISREG(its.st_mode) and its.st_size == 0

    def _append(self, text: str) -> None:
        assert self._descriptor is not None
        before = os.fstat(self._descriptor).st_size
        data = text.encode()
        try:
            if os.write(self._descriptor, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._descriptor)
        except OSError:
            # A half-written line would run together with the next one.
            os.ftruncate(self._descriptor, before)
            raise

    def _own_descriptor(self) -> int:
        assert self._descriptor is not None
        return self._descriptor

    def _hold(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._close = weakref.finalize(self, os.close, descriptor)  # an object that is dropped unlocks it too

    def _make_own(self) -> None:
        """Replace a mark that has other names, as in a snapshot of hard links, by a copy: what those name stays."""
        assert self._descriptor is not None
        if os.fstat(self._descriptor).st_nlink < 2:
            return
        text, close_old = os.pread(self._descriptor, _MOST_BYTES, 0), self._close
        copy = self.path / f".{MARK}.{secrets.token_hex(4)}.partial"
        self._hold(os.open(copy, _FLAGS | os.O_EXCL, stat.S_IMODE(os.fstat(self._descriptor).st_mode)))
        try:
            self._lock()  # before it has the name by which others open it
            os.write(self._descriptor, text)
            os.replace(copy, self.path / MARK)
        except BaseException:
            os.unlink(copy)
            raise
        finally:
            close_old()

    def _lock(self) -> None:
        assert self._descriptor is not None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _HELD:
                warnings.warn(
                    f"{self.path} cannot be locked ({error.strerror}): a second run may write to it, and each "
                    "may remove what the other writes\n  fix: use a file system with locks, or run only one at a time",
                    CheckpointWarning,
                    stacklevel=4,
                )
                return
            holder, is_here = self._holder()
            fix = "use that one, or close it" if is_here else "wait for it or end it"
            raise self._error(
                f"{self.path} is already {holder}; nothing was touched\n  fix: {fix}, or choose another folder"
            ) from error

    def _holder(self) -> tuple[str, bool]:
        """Return who holds the lock, and whether that is this process."""
        since = [line for line in _lines(self.path) if line.startswith("in use ")]
        if not since:
            return "in use by a run that has just begun", False
        is_here = since[-1].endswith(f" by process {os.getpid()} on {socket.gethostname()}")
        return since[-1] + (", which is this program" if is_here else ""), is_here


def folder_id(path: Path, kind: str) -> str | None:
    """Return the id in the mark of a folder; None unless it is marked as one of this kind."""
    lines = _lines(path)
    first = _FIRST_LINE.fullmatch(lines[0]) if lines else None
    return first["id"] if first and first["kind"] == kind else None


def is_in_use(path: Path) -> bool | None:
    """Return whether a process writes to a folder; None if that cannot be known, as on another machine.

    The list of the system's locks is read: to try the lock would be in the way of who begins to write.

    Args:
        path: a folder of Outlay's.
    """
    since = [line for line in _lines(path) if line.startswith("in use since ")]
    if not since or not since[-1].endswith(f" on {socket.gethostname()}"):
        return None
    try:
        number = os.lstat(path / MARK).st_ino
        with open("/proc/locks", encoding="ascii") as locks:
            return any("FLOCK" in lock and f":{number} " in lock for lock in locks)
    except OSError:
        return None


def mark(path: Path, kind: str, id: str) -> None:
    """Mark a folder that was made inside of one of our folders.

    Raises:
        OSError: it cannot be written.
    """
    (path / MARK).write_text(_first_line(kind, id), encoding="utf-8")


def _first_line(kind: str, id: str) -> str:
    return f"Outlay {kind} {id}: what Outlay wrote here it may replace and remove, and nothing else"


def _lines(path: Path) -> list[str]:
    """Return the lines of a folder's mark; none if there is no readable mark."""
    try:
        with open_plain(path / MARK) as file:
            # A character that the limit cuts off in the middle is left out.
            return codecs.getincrementaldecoder("utf-8")().decode(file.read(_MOST_BYTES)).splitlines()
    except (OSError, ValueError):
        return []


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _forget_in_child() -> None:
    """Drop inherited locks: a forked child, such as a data worker, would hold them after its parent's death."""
    for folder in list(_open):
        folder.release()


os.register_at_fork(after_in_child=_forget_in_child)
