"""The job's folder: what each process writes for the launcher, and how the launcher reads it.

Every process has up to four files: `0.who.json` once it has joined, `0.beat` while it works, `0.error.json` when it
fails and `0.stacks` when it is asked where it is. A job that has taken what it continues after a restart leaves
`begun`. The folder is private to the user.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

BEAT_SIZE = 256
"""Bytes of a beat file: one JSON object, padded with blanks, so that it is overwritten in place."""


@dataclass(frozen=True)
class Who:
    """A process that has joined.

    Attributes:
        process: its number, from 0.
        num_processes: how many there are.
        host: the machine it runs on.
        pid: its number in the operating system.
        devices: id and kind of each device it drives.
        coordinator: `host:port` at which the processes meet.
        origin: where each of these came from, such as the name of a variable.
    """

    process: int
    num_processes: int
    host: str
    pid: int
    devices: list[dict[str, Any]]
    coordinator: str
    origin: dict[str, str]


@dataclass(frozen=True)
class Beat:
    """A sign of life.

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
class Failure:
    """An exception that nobody caught.

    Attributes:
        time: when, in seconds since the epoch.
        type: the exception's class.
        message: its text.
        traceback: the traceback, as Python prints it.
    """

    time: float
    type: str
    message: str
    traceback: str


@dataclass(frozen=True)
class JobFolder:
    """Reads and writes the files of a job."""

    path: Path
    _read: dict[Path, Any] = field(default_factory=dict, repr=False, compare=False)

    def beat_path(self, process: int) -> Path:
        """The file that a process overwrites with each beat."""
        return self.path / f"{process}.beat"

    def stacks_path(self, process: int) -> Path:
        """The file to which a process appends the stacks of its threads."""
        return self.path / f"{process}.stacks"

    @property
    def output_path(self) -> Path:
        """All output of all processes."""
        return self.path / "output.log"

    def mark_begun(self) -> None:
        """Say that the job has taken the folder that a restart is to continue."""
        self._begun.touch()

    def has_begun(self) -> bool:
        """Whether an earlier start of the job has said so."""
        return self._begun.exists()

    def write_who(self, who: Who) -> None:
        """Say who a process is."""
        self._write(f"{who.process}.who.json", asdict(who))

    def write_failure(self, process: int, failure: Failure) -> None:
        """Say why a process fails."""
        self._write(f"{process}.error.json", asdict(failure))

    def who(self, process: int) -> Who | None:
        """Who a process is, once it has joined."""
        return self._load(f"{process}.who.json", Who)

    def failure(self, process: int) -> Failure | None:
        """Why a process failed, if an exception was the reason."""
        return self._load(f"{process}.error.json", Failure)

    def beat(self, process: int) -> Beat | None:
        """The last sign of life of a process; None before the first, and when it is being written right now."""
        try:
            return Beat(**json.loads(self.beat_path(process).read_bytes()))
        except (OSError, ValueError, TypeError):
            return None

    def clear(self) -> None:
        """Remove what the processes wrote of themselves; the output stays, and that the job has begun."""
        self._read.clear()
        for file in self.path.iterdir():
            if file not in (self.output_path, self._begun):
                file.unlink()

    @property
    def _begun(self) -> Path:
        return self.path / "begun"

    def _write(self, name: str, facts: dict[str, Any]) -> None:
        unfinished = self.path / f"{name}.unfinished"
        unfinished.write_text(json.dumps(facts), encoding="utf-8")
        os.replace(unfinished, self.path / name)  # so that nobody reads half of it

    def _load(self, name: str, kind: type[Any]) -> Any:
        path = self.path / name
        if path not in self._read:
            with contextlib.suppress(FileNotFoundError):  # not yet
                self._read[path] = kind(**json.loads(path.read_text(encoding="utf-8")))
        return self._read.get(path)


def padded(beat: Beat) -> bytes:
    """A beat as the bytes of its file."""
    text = json.dumps(asdict(beat)).encode()
    if len(text) > BEAT_SIZE:
        text = json.dumps(asdict(replace(beat, doing=beat.doing[:32]))).encode()[:BEAT_SIZE]
    return text.ljust(BEAT_SIZE)
