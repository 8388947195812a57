"""Read what a run has left in its folder so far: running, finished, or killed in the middle of a line.

The folder may come from anywhere: no link in it is followed, and nothing outside of it is read.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outlay.core.error_types import RunFolderError
from outlay.core.one_line import OneLine
from outlay.core.output_file import open_plain
from outlay.core.own_folder import MARK, folder_id, is_in_use
from outlay.layout.plan import Plan
from outlay.train.metric_curves import MetricCurves, number_in, thinned
from outlay.train.run_times import FAILED, FINISHED, PHASES, STEPS, STOPPED

RUNNING, KILLED = "running", "killed"
_SILENT = 120.0  # seconds without a new line after which a run on another machine counts as killed
_LONGEST_LINE, _LONGEST_FILE = 2**22, 2**28
_DEEPEST = 3  # folders below the one that is searched for runs


@dataclass
class Session:
    """The part of a run between two starts.

    Attributes:
        began: when, in seconds since 1970.
        after: the step that it went on after.
        of: its number of steps.
        processes: its number of processes.
        memory_of: what its memory is of, `device` or `process`.
        step: its last step.
        seconds: its seconds by phase.
        end: how it ended; empty if it has not, or was killed.
    """

    began: float
    after: int = 0
    of: int | None = None
    processes: int = 1
    memory_of: str = "process"
    step: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    end: str = ""


class RunRecord(OneLine):
    """What a run has written so far. `refresh` reads what was added since.

    Args:
        path: the run folder.

    Attributes:
        path: the run folder.
        config: its configuration; empty if it cannot be read.
        curves: its metrics over the steps.
        last: the metrics of the last step.
        rate: steps a second over the steps, from their times.
        memory: bytes in use over the steps.
        sessions: its starts.
        num_unread: lines that are no JSON, such as half a line of a killed run.
        version: changes when something was read.

    Raises:
        RunFolderError: the folder is not one of a run.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if folder_id(path, "run folder") is None:
            raise RunFolderError(
                f"{path} is not a run folder: it has no {MARK} that says so"
                "\n  fix: the folder that `outlay run` names at its end, such as runs/digits"
            )
        self.version = 0
        self._files: dict[str, _Tail] = {}
        self._start_again()
        self.refresh()

    @property
    def step(self) -> int:
        """The last step that is done."""
        return max(int(number_in(self.last, "step") or 0), *(each.step for each in self.sessions[-1:]), 0)

    @property
    def num_steps(self) -> int | None:
        """The number of steps that were planned; None if nothing says so."""
        of = self.sessions[-1].of if self.sessions else None
        asked = number_in(self.config, "num_steps")
        return of or (int(asked) if asked else None)

    @property
    def state(self) -> str:
        """One of finished, stopped, failed, running and killed."""
        end = self.sessions[-1].end if self.sessions else ""
        if end in (FINISHED, STOPPED, FAILED):
            return end
        if not self.sessions and self.num_steps is not None and self.step >= self.num_steps:
            return FINISHED  # by an Outlay that wrote no times
        used = is_in_use(self.path)
        is_alive = time.time() - self._touched() < _SILENT if used is None else used
        return RUNNING if is_alive else KILLED

    @property
    def seconds(self) -> dict[str, float]:
        """The seconds of all starts by phase."""
        return {name: sum(each.seconds.get(name, 0.0) for each in self.sessions) for name in PHASES}

    @property
    def num_repeated(self) -> int:
        """Steps that were taken again, since a start went on before the last step of the one before."""
        pairs = zip(self.sessions, self.sessions[1:], strict=False)
        return sum(max(0, before.step - later.after) for before, later in pairs)

    @property
    def goodput(self) -> float | None:
        """The share of the time that went to steps which count; None if it is not known."""
        total, useful = sum(self.seconds.values()), 0.0
        for number, each in enumerate(self.sessions):
            taken = each.step - each.after
            later = self.sessions[number + 1].after if number + 1 < len(self.sessions) else each.step
            share = min(1.0, max(0, later - each.after) / taken) if taken > 0 else 0.0
            useful += share * each.seconds.get(STEPS, 0.0)
        return useful / total if total > 0 else None

    @property
    def plan(self) -> Plan | None:
        """Where every array lived; None if that cannot be read."""
        text = _read(self.path / "plan.json")
        try:
            return Plan.from_json(text) if text else None
        except Exception:  # a file that anybody may have edited
            return None

    def refresh(self) -> bool:
        """Read what was added since; returns whether there was anything."""
        before = self.version
        config = _read(self.path / "config.json")
        if config != self._config_text:
            self._config_text, self.config = config, _object(config) or {}
            self.version += 1
        try:
            for name, take in (("metrics.jsonl", self._take_metrics), ("times.jsonl", self._take_times)):
                for line in self._files.setdefault(name, _Tail(self.path / name)).lines():
                    self.version += 1
                    facts = _object(line)
                    self.num_unread += facts is None
                    if facts is not None:
                        take(facts)
        except _Replaced:
            self._start_again()
            return self.refresh() or True
        return self.version != before

    def _in_short(self) -> str:
        return str(self.path)

    def _start_again(self) -> None:
        self._files.clear()
        self._config_text: str | None = None
        self.config: Mapping[str, Any] = {}
        self.curves, self.last = MetricCurves(), {}
        self.rate: list[tuple[float, float | None]] = []
        self.memory: list[tuple[float, float | None]] = []
        self.sessions: list[Session] = []
        self.num_unread = 0
        self.version += 1
        self._since: tuple[float, float] | None = None

    def _take_metrics(self, metrics: Mapping[str, Any]) -> None:
        step, seconds = number_in(metrics, "step"), number_in(metrics, "seconds")
        if step is None:
            return
        self.curves.add(metrics)
        self.last = metrics
        if seconds is None:
            return
        before = self._since or (0.0, 0.0)
        if self._since is None or step <= before[0]:
            self._since = (step, seconds)  # the first step after a start is slower than all others
        elif seconds > before[1] and (seconds - before[1] >= _SHORTEST or step - before[0] >= _MOST_STEPS):
            self.rate.append((step, (step - before[0]) / (seconds - before[1])))
            self.rate, self._since = _few(self.rate), (step, seconds)

    def _take_times(self, line: Mapping[str, Any]) -> None:
        if (began := number_in(line, "began")) is not None:
            of, after = number_in(line, "of"), int(number_in(line, "after") or 0)
            memory_of = "device" if line.get("memory_of") == "device" else "process"
            processes = int(number_in(line, "processes") or 1)
            self.sessions.append(Session(began, after, int(of) if of else None, processes, memory_of, after))
            return
        if not self.sessions:
            return
        session, seconds = self.sessions[-1], line.get("seconds")
        session.step = max(session.step, int(number_in(line, "step") or 0))
        if isinstance(seconds, dict):
            session.seconds = {name: max(0.0, number_in(seconds, name) or 0.0) for name in PHASES}
        if line.get("end") in (FINISHED, STOPPED, FAILED):
            session.end = line["end"]
        if (memory := number_in(line, "memory")) is not None:
            self.memory.append((session.step, memory))
            self.memory = _few(self.memory)

    def _touched(self) -> float:
        """Return when something was last written."""
        times = [0.0]
        for name in ("metrics.jsonl", "times.jsonl", "config.json"):
            try:
                times.append(os.lstat(self.path / name).st_mtime)
            except OSError:
                continue
        return max(times)


_SHORTEST, _MOST_STEPS = 0.25, 100
"""The seconds, or the steps, over which a speed is an average: that of each step alone is noise."""
_MOST_POINTS = 2000


def _few(points: list[tuple[float, float | None]]) -> list[tuple[float, float | None]]:
    return thinned(points, _MOST_POINTS) if len(points) > 2 * _MOST_POINTS else points


class _Replaced(Exception):
    """A file is another one than before: a new run has begun in the folder."""


class _Tail:
    """The lines of a file that is written to, each once."""

    def __init__(self, path: Path) -> None:
        self._path, self._at, self._file = path, 0, None

    def lines(self) -> Iterator[str]:
        """Yield the whole lines that were added; half a line waits for its rest.

        Raises:
            _Replaced: the file is another one, or shorter than before.
        """
        try:
            with open_plain(self._path) as file:
                about = os.fstat(file.fileno())
                if self._file is not None and (self._file != about.st_ino or about.st_size < self._at):
                    raise _Replaced
                self._file = about.st_ino
                file.seek(self._at)
                while line := file.readline(_LONGEST_LINE):
                    if not line.endswith(b"\n") and len(line) < _LONGEST_LINE:
                        return
                    self._at += len(line)
                    yield line.decode(errors="replace")
        except OSError:
            if self._file is not None:
                raise _Replaced from None


def runs_below(folder: Path) -> list[Path]:
    """Return the run folders at and below a folder, by name; no link is followed.

    Raises:
        RunFolderError: there is no such folder.
    """
    if not folder.is_dir():
        raise RunFolderError(f"there is no folder {folder}\n  fix: the folder that holds the runs, such as runs")
    folders = []
    for path, names, _ in os.walk(folder):
        here = Path(path)
        if folder_id(here, "run folder") is not None:
            folders.append(here)
        if folders[-1:] == [here] or len(here.relative_to(folder).parts) >= _DEEPEST:
            names.clear()
        names[:] = sorted(name for name in names if not name.startswith("."))
    return folders


def _read(path: Path) -> str | None:
    """Return the text of a plain file of reasonable size; None without one."""
    try:
        with open_plain(path) as file:
            return file.read(_LONGEST_FILE).decode(errors="replace")
    except OSError:
        return None


def _object(text: str | None) -> dict[str, Any] | None:
    """Return a JSON object; None for anything else."""
    try:
        value = json.loads(text or "")
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
