"""How a recipe runs: what all kinds of runs do alike, and what a kind says for itself; training is one kind."""

from __future__ import annotations

import abc
import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar

from outlay.core.error_types import RecipeError
from outlay.core.one_line import OneLine
from outlay.core.quantities import counted, plural
from outlay.devices.mesh_info import check_runnable, is_first
from outlay.jobs import process_info
from outlay.jobs.heartbeat import beat
from outlay.program.program import Program
from outlay.recipes.prepare import Prepared
from outlay.recipes.recipe import Recipe
from outlay.recipes.run_config import check_same_run, check_steps_left, run_config
from outlay.recipes.run_result import Result
from outlay.train.checkpoint.checkpoints import Checkpoints
from outlay.train.checkpoint.folder import CheckpointFolder
from outlay.train.recording import MemoryRecorder, Recorder, RowTypes, ZarrRecorder
from outlay.train.run_folder import COLLECTED, LOG_FILE, RECORDING, TENSORBOARD, RunFolder
from outlay.train.run_options import RunOptions
from outlay.train.run_times import COMPILE, RunTimes, run_times
from outlay.train.saving import Saved, Saving

if TYPE_CHECKING:
    from outlay.train.metrics_log import MetricsLog

RECORDED_ROWS = "recorded_rows"
"""The name, in what is collected, of the number of rows of the recording."""


class RecipeRun(OneLine, abc.ABC):
    """A run of a prepared recipe. A kind of run is a subclass, which the recipe names (`Recipe.runner`).

    `run` calls the methods in the order in which they stand here. Until `take_steps` nothing in the folder is touched.

    Args:
        prepared: the recipe with its program.
        options: how it is run.

    Attributes:
        identity: entries of the config that must not change for a run to be continued.
        results: files that a run of this kind leaves in its folder besides those of every run.
        collects: whether something on the host is saved beside the state.
        extras: packages that a run can need, each with the extra that brings it for this kind.
        options: how it is run; while it runs, with those of the run that it continues.
        folder: the run folder, while it runs.
        saving: saves it on its way; None if nothing is saved.
        start: what it continues from; None for a new run.
        log: takes the metrics of each step; None if they go into the run folder alone.
    """

    identity: ClassVar[tuple[str, ...]] = ("recipe", "seed", "record", "stride")
    results: ClassVar[tuple[str, ...]] = ()
    collects: ClassVar[bool] = False
    extras: ClassVar[Mapping[str, str]] = {"matplotlib": "train", "orbax": "train", "tensorstore": "zarr"}

    folder: RunFolder
    saving: Saving | None = None
    start: Saved | None = None
    log: MetricsLog | None = None

    def __init__(self, prepared: Prepared, options: RunOptions) -> None:
        self.prepared, self.options = prepared, options

    @property
    def recipe(self) -> Recipe:
        """What runs."""
        return self.prepared.recipe

    @property
    def program(self) -> Program:
        """Its program."""
        return self.prepared.program

    @property
    def num_steps(self) -> int:
        """The number of steps, those before it was continued among them."""
        return self.recipe.steps if self.options.steps is None else self.options.steps

    @property
    def first_step(self) -> int:
        """The step after which it goes on; 0 for a new run."""
        return self.start.step if self.start else 0

    # What a kind of run says for itself.

    @property
    def step_unit(self) -> int:
        """Saves happen at multiples of this number of steps."""
        return 1

    @abc.abstractmethod
    def config(self) -> dict[str, Any]:
        """Return what `config.json` says of this kind of run in addition."""

    def check_saving(self, every: int) -> None:  # not every kind has something to check
        """Raise if a run cannot be saved at this interval.

        Raises:
            CheckpointError: it cannot.
        """

    def check(self) -> None:
        """Raise if the recipe cannot be run for this number of steps."""

    def check_options(self) -> None:
        """Raise if the run cannot be evaluated, ended early, stepped and logged in this way; only training can.

        Raises:
            RecipeError: it cannot.
        """
        if given := self.options.given_of_training():
            names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise RecipeError(
                f"{names} is for recipes that are trained, and {self.recipe.name!r} is not"
                f"\n  fix: leave out {names}; in Python, {', '.join(f'{name}=' for name in given)}"
            )

    def prepared_for(self, num_steps: int) -> Prepared:
        """Return the recipe with the program that so many more steps need; most programs take any number."""
        return self.prepared

    @abc.abstractmethod
    def take_steps(self) -> Result:
        """Take the steps, and leave the results and the report in the run folder.

        Raises:
            ResultNotWritten: the steps were taken, but the result cannot be written.
        """

    # What a kind of run calls.

    def recorder(self, types: RowTypes, dt: float = 1.0) -> Recorder:
        """Return the recorder of these addresses: it writes into the run folder, from the first process."""
        if not (types and is_first()):
            return MemoryRecorder({}, dt)
        rows = self.start.collected.get(RECORDED_ROWS) if self.start else None
        return ZarrRecorder(
            self.folder.path / RECORDING,
            types,
            dt,
            keep_before=self.start.step if self.start else None,
            keep_rows=None if rows is None else int(rows),
            beside=True,
        )

    def result_facts(self, seconds: float, recorded: Sequence[str], num_rows: int) -> dict[str, Any]:
        """Return what a `Result` says of every run."""
        mesh = self.program.plan.mesh
        return {
            "recipe": self.recipe.name,
            "layout": self.prepared.layout_name,
            "mode": self.program.mode,
            "devices": str(mesh),
            "simulated": mesh.kind == "simulated",
            "num_steps": self.num_steps,
            "resumed_after": self.first_step,
            "seconds": seconds,
            "recorded": tuple(recorded),
            "num_rows": num_rows,
            "folder": str(self.folder.path),
        }

    # What all kinds do alike.

    def open_folder(self) -> RunFolder:
        """Open the run folder, once all processes that run the recipe are seen to run the same.

        A job that starts again goes on in the folder that its first start has taken.

        Raises:
            RecipeError: a package that the run needs is not installed.
            ProgramError: in every process, where they differ.
            RunFolderError: there is something else, or nobody can write there.
        """
        options, recipe = self.options, self.recipe
        path = own_folder_of(recipe.name) if options.run_folder is None else Path(options.run_folder)
        self.check_installed()
        same = {"recipe": recipe.name, "layout": self.prepared.layout_name, "seed": recipe.seed}
        self.program.agree(**same, **options.in_common(), run_folder=path)
        return RunFolder(path, force=options.force, resume=options.resume or _has_begun(), on_begin=_mark_begun)

    def check_installed(self) -> None:
        """Raise if a package is missing that the run would need at its end, or on its way; nothing is written yet.

        Raises:
            RecipeError: with all of them, and what installs them.
        """
        if self.options.loggers:
            from outlay.train.metrics_log import check_loggers  # most runs do without

            check_loggers(self.options.loggers)
        needs = {"matplotlib": "figures"}
        needs |= {"tensorstore": "recordings"} if self.recipe.record else {}
        needs |= {"orbax": "checkpoints"} if self.options.checkpoint_every or self.options.resume else {}
        missing = [name for name in needs if find_spec(name) is None]
        if missing:
            words = ", ".join(f"{name} for its {needs[name]}" for name in missing)
            extras = ",".join(dict.fromkeys(self.extras[name] for name in missing))
            raise RecipeError(
                f"a run of {self.recipe.name} needs {words}, and {plural(len(missing), 'that is', 'those are')} not "
                f"installed\n  fix: pip install 'outlay[{extras}]'"
            )

    def run(self, folder: RunFolder) -> Result:
        """Run the recipe, and fill its run folder. Progress goes to stderr.

        A folder that holds an earlier run of the recipe, opened to be continued, goes on after its newest checkpoint.

        Args:
            folder: where config, plan, metrics, checkpoints, pictures and report go. It is closed at the end.

        Raises:
            Interrupted: on Ctrl-C; config, plan, checkpoints and what was measured so far are in the folder.
            CheckpointError: a run of this recipe cannot be saved, or the earlier run cannot be continued.
            RunFolderError: the folder cannot be written to. Where that shows after the last step it is
                `ResultNotWritten`, which has the result.
        """
        self.folder = folder
        try:
            self.options = self.options.continuing(folder.earlier or {}, steps=self.recipe.steps)
            is_watched = self.options.watch and is_first()
            with _watched(folder) if is_watched else contextlib.nullcontext(), run_times() as times:
                return self._run(times)
        finally:
            folder.close()

    def _in_short(self) -> str:
        return f"{self.recipe.name} for {counted(self.num_steps, 'step')}"

    def _run(self, times: RunTimes) -> Result:
        folder, every = self.folder, self.options.checkpoint_every
        config = run_config(self.prepared, self.options, self.config(), folder.earlier or {})
        self.saving = self._saving(every) if every else None
        if folder.earlier is not None:  # opened to be continued, and there is one
            check_same_run(folder, config, self.identity)
            self.start = self.saving.restore(self.program) if self.saving else None
            check_steps_left(folder, self.first_step, self.num_steps)
        self.check()
        self.check_options()
        self.prepared = self.prepared_for(self.num_steps - self.first_step)
        # Everything that can fail has failed by now: from here on the run that this one replaces goes (decision 13).
        folders = self._own_folders()
        folder.check_room(self.results, folders)
        self._check_checkpoints_free()
        with times.spending(COMPILE):
            _check_ready(self.program)
        with self._logged(config) as self.log:
            folder.write_config(config)
            folder.keep_times(times)
            folder.write_plan(self.program.plan)
            if self.log and is_first():
                folder.will_write(LOG_FILE)
            folder.remove_old_results(self.results, continued=self.start is not None, folders=folders)
            return self.take_steps()

    def _saving(self, every: int) -> Saving:
        self.check_saving(every)
        collected = self.folder.path / COLLECTED if self.collects else None
        return Saving(Checkpoints(self.folder.checkpoints_path), every, collected=collected, step_unit=self.step_unit)

    def _own_folders(self) -> dict[str, bool]:
        """Return the folders that a run may have in its own, and whether this one has them."""
        return {
            RECORDING: bool(self.recipe.record),
            COLLECTED: self.saving is not None and self.collects,
            TENSORBOARD: TENSORBOARD in (self.options.loggers or ()),
        }

    def _check_checkpoints_free(self) -> None:
        saving, last = self.saving, self.num_steps
        if saving is None or not is_first():
            return
        first = self.start.step if self.start else -1
        CheckpointFolder(self.folder.checkpoints_path).check_free(
            lambda step: first < step <= last and saving.is_due(step, is_last=step == last)
        )

    def _logged(self, config: Mapping[str, Any]) -> contextlib.AbstractContextManager[MetricsLog | None]:
        """Return what sends the metrics on in its block; None if they go into the run folder alone."""
        if not self.options.loggers:
            return contextlib.nullcontext()
        from outlay.train.metrics_log import MetricsLog  # most runs do without

        name, path = self.recipe.name, self.folder.path
        return MetricsLog(self.options.loggers, folder=path, project=name, config=config, after=self.first_step)


def run_of(prepared: Prepared, options: RunOptions) -> RecipeRun:
    """Return the run of a prepared recipe, of the kind that the recipe names."""
    return resolve_name(prepared.recipe.runner)(prepared, options)


def own_folder_of(name: str) -> Path:
    """Return the default run folder of a recipe, `runs/NAME`; a name is text, and no path.

    Raises:
        RecipeError: the name cannot be that of a folder.
    """
    if name in (".", "..") or not name.isprintable() or set(name) & set("/\\") or len(os.fsencode(name)) > 200:
        raise RecipeError(
            f"the recipe is called {name[:60]!r}, which cannot be the name of a folder\n  fix: name a run folder"
        )
    return Path("runs") / name


@contextlib.contextmanager
def _watched(folder: RunFolder) -> Iterator[None]:
    """Serve a page that follows the run in this block."""
    from outlay.report.live_server import served  # most runs do without

    with served(folder.path) as server:
        print(f"watch it at {server.address}", file=sys.stderr, flush=True)
        yield


def _check_ready(program: Program) -> None:
    """Raise if a run could not take its first step, while what it replaces is still there.

    Raises:
        ProgramError: the target is one that nothing runs on.
    """
    check_runnable(program.mesh, "a state cannot be made")
    beat(None, "compiling")
    _ = program.compiled_parts  # asking for it compiles it


def _has_begun() -> bool:
    """Return whether an earlier start of this job has taken the run folder, so that this one continues it."""
    if process_info.JOB_DIR not in os.environ:
        return False
    from outlay.jobs.job_folder import Flag, own_job_folder

    folder = own_job_folder()
    return folder is not None and folder.has(Flag.BEGUN)


def _mark_begun() -> None:
    """Mark that this job has taken the run folder, for later starts of it."""
    if process_info.JOB_DIR not in os.environ:
        return
    from outlay.jobs.job_folder import Flag, own_job_folder

    if folder := own_job_folder():
        folder.set(Flag.BEGUN)
