"""The folder of a run: its configuration, plan, metrics, checkpoints and report."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from outlay.core.error_types import Problem, RunFolderError
from outlay.core.one_line import OneLine
from outlay.core.output_file import open_plain, picture_bytes, raising, write_whole
from outlay.core.own_folder import MARK, OwnFolder
from outlay.core.quantities import counted, listed
from outlay.devices.mesh_info import is_first
from outlay.layout.plan import Plan
from outlay.train.checkpoint.folder import CheckpointFolder
from outlay.train.run_arrays import GROUP, arrays_of, links_below, remove_collected, remove_events, remove_recording
from outlay.train.run_record import RunRecord
from outlay.train.run_times import RunTimes, appended, current_times

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CONFIG, _METRICS, _TIMES = "config.json", "metrics.jsonl", "times.jsonl"
_CHECKPOINTS = "checkpoints"
RECORDING, COLLECTED = "recording.zarr", "collected"
"""The recording of a run, and the folder of what is saved with its checkpoints."""
TENSORBOARD, LOG_FILE = "tensorboard", "log.json"
"""TensorBoard's files of a run, and the file of the ids of the run in the services that it is logged to."""
_FILES = (_CONFIG, "plan.json", _METRICS, _TIMES, "loss.png", "sample.txt", "report.html", LOG_FILE)


class RunFolder(OneLine):
    """The folder of one run: `config.json`, `plan.json`, `report.html`, `checkpoints/`, `recording.zarr`, and results.

    The folder must be new, empty, or marked by Outlay as a run folder with a list of the files that it wrote. Only
    listed files are ever replaced or removed, and only when the new run starts, after all checks. One run at a time can
    use the folder; the lock ends with the run or its process.

    In a job of several processes, every process opens the folder, but only the first writes to it.

    Args:
        path: the folder; created if missing.
        force: replace an existing run. Only Outlay's files are replaced; all others stay.
        resume: continue an existing run, or start one if there is none.
        on_begin: called when the run has started: the old run is removed and the new config is written.

    Attributes:
        earlier: the config of the continued run; None for a new run.

    Raises:
        RunFolderError: the folder has content that must not be replaced or cannot be continued, another run is writing
            to it, or it is not writable; nothing was touched.
    """

    def __init__(
        self, path: Path, *, force: bool = False, resume: bool = False, on_begin: Callable[[], None] | None = None
    ) -> None:
        self.path = path
        self._on_begin = on_begin
        if path == Path() or not str(path).strip():
            raise RunFolderError(
                "the run folder is the current folder, or comes from an empty variable"
                "\n  fix: --run-folder with the name of a folder for this run alone"
            )
        self._own = OwnFolder(
            path, "run folder", RunFolderError, lambda: f"--run-folder {_unused_name(path)} for a new one"
        )
        self._own.check_owned()
        self._check_links(is_continued=resume)
        with self._own.as_error():
            self.earlier: dict[str, Any] | None = _config_of(path) if resume else None
            if is_first():
                if self.earlier is None:
                    self._check_free(force)
                self._own.take()
        _wait_for_all("every process has read what is in the run folder")

    @property
    def metrics_path(self) -> Path | None:
        """The file of the metrics, one JSON object per line; None in a process that does not write."""
        return self.path / _METRICS if is_first() else None

    @property
    def checkpoints_path(self) -> Path:
        """The folder of the run's checkpoints."""
        return self.path / _CHECKPOINTS

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Start the run: remove what it replaces, and write its configuration.

        Raises:
            RunFolderError: the configuration cannot be written.
        """
        if is_first() and self.earlier is None:
            collected = self._clear_checkpoints() if os.path.lexists(self.checkpoints_path) else []
            for name in sorted(self._own.names()):
                self.remove(name, collected)
        self.write(_CONFIG, json.dumps(config, indent=1) + "\n")
        if is_first():
            self.will_write(_METRICS)
        if self._on_begin:
            self._on_begin()

    def _clear_checkpoints(self) -> list[int]:
        """Remove the checkpoints of the run that this one replaces; return their steps."""
        checkpoints = CheckpointFolder(self.checkpoints_path)
        steps = checkpoints.own_steps()
        if checkpoints.own.id is not None:
            checkpoints.clear()
            checkpoints.own.release()
        return steps

    def remove_old_results(self, results: Iterable[str], *, continued: bool, folders: Mapping[str, bool]) -> None:
        """Remove results of an earlier run that this one rewrites, and list the folders that it will write.

        Args:
            results: names of files.
            continued: whether the run continues the folders of the earlier one; otherwise they are removed.
            folders: names of folders, and whether this run writes them.

        Raises:
            RunFolderError: a file in the way is not Outlay's, or cannot be removed.
        """
        if is_first():
            for name in (*results, *(() if continued else folders)):
                self.remove(name)
            for name in (name for name, is_written in folders.items() if is_written):
                self.will_write(name)
        _wait_for_all("the first process has emptied the run folder")

    def keep_times(self, times: RunTimes) -> None:
        """Write where the time of the run goes, from the first process; without room for the file it is not written."""
        if is_first():
            with contextlib.suppress(OSError):
                times.keep_in(appended(self.will_write(_TIMES)))

    def record(self) -> RunRecord:
        """Read what the run has written so far, up to now."""
        current_times().write()
        return RunRecord(self.path)

    def write_plan(self, plan: Plan) -> None:
        """Write the plan; `Plan.from_json` reads it."""
        self.write("plan.json", plan.to_json() + "\n")

    def write_loss(self, history: Sequence[Mapping[str, float]]) -> Path:
        """Plot the loss over steps."""
        return self.write("loss.png", picture_bytes(loss_plot(history)))

    def write_sample(self, text: str) -> Path:
        """Write the recipe's sample of the trained state."""
        return self.write("sample.txt", text)

    def write_report(self, html: str) -> Path:
        """Write the report page."""
        return self.write("report.html", html)

    def write(self, name: str, content: str | bytes) -> Path:
        """Write a file atomically: a run with half a config could not be continued.

        Raises:
            RunFolderError: the file cannot be written, or exists and is not Outlay's.
        """
        path = self.path / name
        if is_first():
            self.will_write(name)
            fix = "free space or fix the permissions, then continue with --resume if the run saved checkpoints"
            after = f"; earlier files of this run are intact\n  fix: {fix}"
            with raising(lambda why: RunFolderError(f"{path} cannot be written: {why}{after}")):
                write_whole(path, content, through_links=False)
        return path

    def will_write(self, name: str) -> Path:
        """List a file or folder before it is written, so that later runs know that it is Outlay's.

        Raises:
            RunFolderError: the name exists and is not Outlay's.
        """
        self._own.will_write(name)
        return self.path / name

    def check_room(self, results: Iterable[str], folders: Mapping[str, bool]) -> None:
        """Raise if something in the folder is in the way of what a run writes; nothing is touched.

        Args:
            results: as `remove_old_results` takes them, like the next.
            folders: likewise.

        Raises:
            RunFolderError: everything in the way is listed.
        """
        if not is_first():
            return
        listed_names, problems = self._own.names(), []
        written = dict.fromkeys((*_FILES, *results), False) | {name: True for name, is_in in folders.items() if is_in}
        for name, is_folder in written.items():
            path = self.path / name
            if not os.path.lexists(path):
                continue
            if name not in listed_names:
                problems.append((name, "Outlay did not write what is there"))
            elif path.is_dir() and not path.is_symlink() and not is_folder:
                problems.append((name, "it is a folder where Outlay wrote a file"))
        if folders.get(RECORDING) and self.earlier is None:
            recording = self.path / RECORDING
            if RECORDING in listed_names and not arrays_of(recording) and os.path.lexists(recording / GROUP):
                problems.append((f"{RECORDING}/{GROUP}", "it does not say which arrays are a run's"))
        if problems:
            fix = f"rename it, or --run-folder {_unused_name(self.path)} for a new one"
            num = counted(len(problems), "entry", "entries")
            raise RunFolderError(
                f"{self.path} has {num} in the way of a run; nothing was touched",
                [Problem("name", str(self.path / name), f"{name} is in the way: {why}", fix) for name, why in problems],
            )

    def remove(self, name: str, collected: Iterable[int] = ()) -> None:
        """Remove a file that Outlay wrote; from a folder, remove the run's arrays, and the folder if it is then empty.

        Args:
            name: its name.
            collected: the steps of which arrays were collected.

        Raises:
            RunFolderError: the file cannot be removed.
        """
        if name not in self._own.names():
            return
        path = self.path / name
        with raising(lambda why: RunFolderError(f"{path} cannot be removed: {why}\n  fix: another --run-folder")):
            if path.is_symlink() or not path.is_dir():
                path.unlink(missing_ok=True)
                return
            if name == COLLECTED:
                remove_collected(path, collected)
            elif name == TENSORBOARD:
                remove_events(path)
            else:
                remove_recording(path)

    def close(self) -> None:
        """Unlock the folder for other runs."""
        self._own.release()

    def _in_short(self) -> str:
        return str(self.path)

    def _check_links(self, *, is_continued: bool) -> None:
        """Raise if a link stands where a run reads or writes: what it leads to is not the run's.

        A new run removes links in the place of its files, which leaves what they lead to; it enters no folder by one.
        """
        names = {_CHECKPOINTS} if not is_continued else {_CHECKPOINTS, *_FILES, COLLECTED, *self._own.names()}
        with self._own.as_error():
            links = [self.path / name for name in sorted(names) if (self.path / name).is_symlink()]
            if is_continued:
                links += links_below(self.path / RECORDING)
        if links:
            problems = [
                Problem("link", str(link), f"it leads to {os.readlink(link)!r}", "remove it, or copy its target there")
                for link in links
            ]
            raise RunFolderError(
                f"{self.path} has {counted(len(links), 'link')} in the place of what a run writes, and Outlay writes "
                "through none; nothing was touched",
                problems,
            )

    def _check_free(self, force: bool) -> None:
        if not self.path.is_dir():
            return
        names = self._own.names()
        strange = [name for name in _FILES if name not in names and os.path.lexists(self.path / name)]
        if strange:
            raise RunFolderError(
                f"{self.path} is a run folder, but Outlay did not write {', '.join(strange)}, which a run would replace"
                f"\n  fix: rename {strange[0]}, or --run-folder {_unused_name(self.path)} for a new one"
            )
        entries = sorted(entry.name for entry in self.path.iterdir() if entry.name != MARK)
        if not entries or force or self._never_began(entries, names):
            return
        raise RunFolderError(
            f"the run folder {self.path} exists and holds {counted(len(entries), 'file')}: {listed(entries, 6)}\n"
            f"  fix: --run-folder {_unused_name(self.path)} for a new one, or --force to replace the run in it"
        )

    def _never_began(self, entries: Sequence[str], names: Collection[str]) -> bool:
        """Return whether this is what a run left that ended before its first step: nothing in it is worth keeping."""
        if not set(entries) <= {_CONFIG, "plan.json", _METRICS, _TIMES, RECORDING} & set(names):
            return False
        metrics, recording = self.path / _METRICS, self.path / RECORDING
        if os.path.lexists(metrics) and metrics.stat(follow_symlinks=False).st_size > 0:
            return False
        return not recording.is_dir() or {path.name for path in recording.iterdir()} <= {"zarr.json"}


def _wait_for_all(what: str) -> None:
    """Wait for every process to arrive, if there are several; for the argument see `multihost.wait_for_all`."""
    if jax.process_count() > 1:
        from outlay.train.multihost import wait_for_all

        wait_for_all(what)


def _unused_name(path: Path) -> Path:
    number = 2
    while os.path.lexists(free := path.parent / f"{path.name}-{number}"):
        number += 1
    return free


def _config_of(path: Path) -> dict[str, Any] | None:
    try:
        with open_plain(path / _CONFIG) as file:  # a run folder may come from anywhere
            config = json.loads(file.read())
        _check_config(config)
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise RunFolderError(
            f"{path / _CONFIG} is not the config of a run: {error}\n  fix: restore it, or --force to start a new run"
        ) from error
    return config


def _check_config(config: Any) -> None:
    """Check the values that are read from a config, since it may have been edited."""
    if not isinstance(config, dict):
        raise ValueError(f"it holds a {type(config).__name__} and not an object")
    for name, is_optional in (("num_steps", False), ("checkpoint_every", True)):
        value = config.get(name)
        if value is None and is_optional:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name} is {value!r:.40}, not a number of steps")
    before = config.get("before", [])
    if not isinstance(before, list) or not all(isinstance(arrangement, dict) for arrangement in before):
        raise ValueError("before is not a list of objects")


_LINE, _FAINT, _TEXT = "#2b6cb0", "#a9c7e8", "#333333"


def loss_plot(history: Sequence[Mapping[str, float]]) -> Figure:
    """Plot the loss over steps: faint values, and their running mean.

    Args:
        history: the metrics of every step, with `step` and `loss`, as in `Fit`.
    """
    # A third of a second to import, and of the processes of a job only the first draws. It needs no display.
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    steps = np.array([metrics["step"] for metrics in history])
    losses = np.array([metrics["loss"] for metrics in history])
    figure = Figure(figsize=(7, 3.8), layout="constrained")
    axes = figure.add_subplot()
    width = max(1, len(losses) // 25)
    axes.plot(steps, losses, color=_FAINT, linewidth=1, label="each step")
    if width > 1:
        axes.plot(steps, _running_mean(losses, width), color=_LINE, linewidth=2, label="running mean")
        axes.legend(frameon=False, labelcolor=_TEXT, loc="upper right")
    if np.isfinite(losses).all() and 0 < losses.min() < losses.max() / 20:
        axes.set_yscale("log")
    axes.set(xlabel="step", ylabel="training loss")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(visible=True, which="major", color="#e5e7eb", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=_TEXT)
    return figure


def _running_mean(values: np.ndarray, width: int) -> np.ndarray:
    """Average `width` values around each position; fewer at the ends."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    indices = np.arange(len(values))
    starts = np.maximum(indices - width // 2, 0)
    ends = np.minimum(indices + width // 2 + 1, len(values))
    return (sums[ends] - sums[starts]) / (ends - starts)
