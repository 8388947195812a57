"""The job's folder: the files that processes write for the launcher, and that it writes for them.

Every process has up to five files: `0.who.json` once it has joined, `0.beat` and `0.wait` while it works,
`0.error.json` when it fails, and `0.stacks` when it is asked for its stacks. Flags are empty files. The folder is
private to the user, and `launcher` is locked as long as its launcher lives.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from outlay.jobs import process_info
from outlay.jobs.proc_files import find

BEAT_SIZE = 256
"""Bytes of a beat file, and of a wait file: one JSON object, padded with blanks, so that it is overwritten in place."""

JOINING = ("joining", "meeting the others")
"""What the heartbeats of a process say until it has joined."""

JOINED = "joined"
"""What the heartbeat of a process says that has joined and has not reported more."""

AFTER_THE_LAST = "what follows the last step"
"""What the heartbeat of a process says after its last step: it may report or upload for as long as it likes."""

FINISHED = "finished"
"""What the heartbeat of a process says when its program has ended, and only JAX's shutdown is left."""


@dataclass(frozen=True)
class JoinedProcess:
    """A process that has joined.

    Attributes:
        process: its number, from 0.
        num_processes: how many there are.
        host: the machine it runs on.
        pid: its number in the operating system.
        devices: id and kind of each device it drives.
        coordinator: `host:port` at which the processes meet.
        origin: where each of these came from, such as the name of a variable.
        namespace: in which its pid is that number.
    """

    process: int
    num_processes: int
    host: str
    pid: int
    devices: list[dict[str, Any]]
    coordinator: str
    origin: dict[str, str]
    namespace: str = ""


@dataclass(frozen=True)
class Beat:
    """A heartbeat: what a process did last, and does now.

    Attributes:
        step: the last step that was finished, if any was.
        time: when, in seconds since the epoch.
        doing: what is going on, such as `step 12`, `compiling`, `saving` or `finished`.
        of: how many steps there are in all, where that is known.
    """

    step: int | None
    time: float
    doing: str
    of: int | None = None


@dataclass(frozen=True)
class Wait:
    """For how long a process has waited in JAX, as it says itself.

    Attributes:
        seconds: how long, with nothing of it at work; 0 where it does not wait.
        works_unseen: whether its devices may work without a sign of it in the process.
        in_jax: whether its main thread stands in JAX, whatever else is at work.
        sample: which of its looks at itself this is; none is a sign that it cannot look.
    """

    seconds: float
    works_unseen: bool
    in_jax: bool
    sample: int


def is_after_the_last(beat: Beat) -> bool:
    """Return whether a process reports that it has taken all its steps."""
    done = beat.of is not None and beat.step is not None and beat.step >= beat.of
    return done or beat.doing in (AFTER_THE_LAST, FINISHED)


@dataclass(frozen=True)
class Failure:
    """An uncaught exception.

    Attributes:
        time: when, in seconds since the epoch.
        type: the exception's class.
        message: its text.
        traceback: the traceback, as Python prints it.
        exit_code: what the process ends with.
    """

    time: float
    type: str
    message: str
    traceback: str
    exit_code: int


class Flag(StrEnum):
    """What a job or its launcher says by an empty file."""

    BEGUN = "begun"  # the job has taken the run folder that a restart is to continue
    LISTENS = "listens"  # the program looks for a request to stop, and saves its state before it stops
    STOP = "stop"  # the launcher asks the program to stop
    ENDING = "ending"  # the launcher ends the processes, so that its SIGTERM is not a request to save


@dataclass(frozen=True)
class JobFolder:
    """Reads and writes the files of a job.

    Attributes:
        path: where they are.
        mark: by which the launcher knows the processes of the job.
    """

    path: Path
    mark: str = ""
    _read: dict[Path, Any] = field(default_factory=dict, repr=False, compare=False)

    def beat_path(self, process: int) -> Path:
        """Return the file that a process overwrites with each beat."""
        return self.path / f"{process}.beat"

    def wait_path(self, process: int) -> Path:
        """Return the file that a process overwrites with each look at whether it waits."""
        return self.path / f"{process}.wait"

    def stacks_path(self, process: int) -> Path:
        """Return the file to which a process appends the stacks of its threads."""
        return self.path / f"{process}.stacks"

    @property
    def output_path(self) -> Path:
        """All output of all processes."""
        return self.path / "output.log"

    def set(self, flag: Flag) -> None:
        """Set a flag, for all processes of the job and their launcher."""
        (self.path / flag).touch()

    def has(self, flag: Flag) -> bool:
        """Return whether a flag is set."""
        return (self.path / flag).exists()

    def write_joined(self, process: JoinedProcess) -> None:
        """Write that a process has joined, and what it is."""
        self._write(f"{process.process}.who.json", asdict(process))

    def write_failure(self, process: int, failure: Failure) -> None:
        """Write why a process fails."""
        self._write(f"{process}.error.json", asdict(failure))

    def joined(self, process: int) -> JoinedProcess | None:
        """Return what a process has written of itself when it joined; None before."""
        return self._load(f"{process}.who.json", JoinedProcess)

    def pid(self, process: int) -> int | None:
        """Return the pid of a process here, which may differ in its container; None before it has joined."""
        joined, key = self.joined(process), self.path / f"{process}.pid"
        if joined and key not in self._read and (pid := find(self.mark, joined.pid, joined.namespace)):
            self._read[key] = pid
        return self._read.get(key)

    def failure(self, process: int) -> Failure | None:
        """Return why a process failed, if an exception was the reason."""
        return self._load(f"{process}.error.json", Failure)

    def beat(self, process: int) -> Beat | None:
        """Return the last heartbeat of a process; None before the first, and while it is being written."""
        return _overwritten(self.beat_path(process), Beat)

    def wait(self, process: int) -> Wait | None:
        """Return for how long a process waits; None before it knows, and while it is being written."""
        return _overwritten(self.wait_path(process), Wait)

    def clear(self) -> None:
        """Remove what the processes wrote of themselves; the output stays, and that the job has begun."""
        self._read.clear()
        for file in self.path.iterdir():
            if file not in (self.path / Flag.BEGUN, self.launcher_path) and not file.name.startswith(
                self.output_path.name
            ):
                file.unlink()

    @property
    def launcher_path(self) -> Path:
        """The file that the launcher has locked."""
        return self.path / _LAUNCHER

    def _write(self, name: str, facts: dict[str, Any]) -> None:
        unfinished = self.path / f"{name}.unfinished"
        with contextlib.suppress(OSError):  # a full disk ends no job: its launcher knows less
            unfinished.write_text(json.dumps(facts), encoding="utf-8")
            os.replace(unfinished, self.path / name)  # so that nobody reads half of it

    def _load(self, name: str, kind: type[Any]) -> Any:
        path = self.path / name
        if path not in self._read:
            with contextlib.suppress(FileNotFoundError):  # not yet
                self._read[path] = kind(**json.loads(path.read_text(encoding="utf-8")))
        return self._read.get(path)


def _overwritten(path: Path, kind: type[Any]) -> Any:
    try:
        return kind(**json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def own_job_folder() -> JobFolder | None:
    """Return the folder of the job that a launcher has started this process in; None where there is no launcher."""
    path = os.environ.get(process_info.JOB_DIR)
    return JobFolder(Path(path)) if path else None


_PREFIX = "outlay-job-"
_LAUNCHER = "launcher"
_KEPT = 5


@contextlib.contextmanager
def new_job_folder() -> Iterator[JobFolder]:
    """Make the folder of a job of this launcher; keep the folders of the last few failed jobs, remove older ones."""
    import tempfile  # here, as `outlay --help` would load it too

    _remove_old(Path(tempfile.gettempdir()))
    folder = JobFolder(Path(tempfile.mkdtemp(prefix=_PREFIX)), os.urandom(8).hex())
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # no room: this folder is not known as ours then, and nobody removes it
            lock = stack.enter_context(folder.launcher_path.open("w"))
            lock.write(f"{os.getpid()}\n")
            lock.flush()
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # goes with this process, however it ends
        yield folder


def _remove_old(where: Path) -> None:
    """Remove folders of launchers that have ended, but for the last few: what is ours has a file that says so."""
    ended: list[tuple[float, Path]] = []
    with contextlib.ExitStack() as stack:
        for path in where.glob(f"{_PREFIX}*"):
            with contextlib.suppress(OSError):  # somebody else's, or gone by now
                if path.is_symlink() or path.stat().st_uid != os.getuid():
                    continue
                lock = stack.enter_context((path / _LAUNCHER).open("r+"))
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails where its launcher lives
                ended.append((os.fstat(lock.fileno()).st_mtime, path))
        for _, path in sorted(ended, reverse=True)[_KEPT:]:
            shutil.rmtree(path, ignore_errors=True)


def padded(facts: Beat | Wait) -> bytes:
    """Return a heartbeat, or a wait, as the bytes of its file."""
    text = json.dumps(asdict(facts)).encode()
    if isinstance(facts, Beat) and len(text) > BEAT_SIZE:
        text = json.dumps(asdict(replace(facts, doing=facts.doing[:32]))).encode()[:BEAT_SIZE]
    return text.ljust(BEAT_SIZE)
