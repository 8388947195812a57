"""Run a prepared recipe of any kind, or continue the run of it that is in a run folder."""

from __future__ import annotations

import contextlib
import os
import pickle
import platform
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outlay.core.commit import commit_of
from outlay.core.error_types import CheckpointError, RecipeError
from outlay.core.quantities import counted
from outlay.core.runtime_flags import versions
from outlay.devices.mesh_info import check_runnable
from outlay.jobs.heartbeat import beat
from outlay.jobs.job_folder import Flag, own_job_folder
from outlay.program.program import Program
from outlay.recipes.plugins import load
from outlay.recipes.prepare import Prepared
from outlay.recipes.run_kind import Result, RunKind, RunSetup, TrainingOptions
from outlay.train.checkpoint.checkpoints import Checkpoints
from outlay.train.checkpoint.folder import CheckpointFolder
from outlay.train.multihost import is_first
from outlay.train.run_folder import COLLECTED, LOG_FILE, RECORDING, TENSORBOARD, RunFolder
from outlay.train.run_times import COMPILE, RunTimes, run_times
from outlay.train.saving import Saved, Saving

if TYPE_CHECKING:
    from outlay.train.metrics_log import MetricsLog


def open_folder(
    prepared: Prepared,
    run_folder: Path | str | None,
    *,
    force: bool,
    resume: bool,
    steps: int | None,
    checkpoint_every: int | None,
    training: TrainingOptions,
) -> RunFolder:
    """Open the run folder of a prepared recipe, once all processes that run it are seen to run the same.

    A job that starts again goes on in the folder that its first start has taken.

    Args:
        prepared: the recipe with its program.
        run_folder: the folder; `runs/NAME` if None.
        force: replace the run that is there.
        resume: continue it.
        steps: as `run_prepared` takes it, like the next two.
        checkpoint_every: likewise.
        training: likewise.

    Raises:
        RecipeError: a package that the run needs is not installed.
        ProgramError: in every process, where they differ.
        RunFolderError: there is something else, or nobody can write there.
    """
    path = own_folder_of(prepared.recipe.name) if run_folder is None else Path(run_folder)
    load(prepared.recipe.runner)(prepared).check_installed(
        saves=bool(checkpoint_every) or resume, log=training.log or ()
    )
    prepared.program.agree(
        recipe=prepared.recipe.name,
        layout=prepared.layout_name,
        seed=prepared.recipe.seed,
        steps=steps,
        checkpoint_every=checkpoint_every,
        **asdict(training),
        run_folder=path,
        resume=resume,
    )
    return RunFolder(path, force=force, resume=resume or _has_begun(), on_begin=_mark_begun)


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


def run_prepared(
    prepared: Prepared,
    folder: RunFolder,
    *,
    steps: int | None = None,
    checkpoint_every: int | None = None,
    training: TrainingOptions | None = None,
    watch: bool = False,
) -> Result:
    """Run a prepared recipe as its kind is run, and fill its run folder. Progress goes to stderr.

    A folder that holds an earlier run of the recipe, opened with `resume`, is continued after its newest checkpoint.

    Args:
        prepared: the recipe with its program.
        folder: where config, plan, metrics, checkpoints, pictures and report go.
        steps: how many steps in all; those of the earlier run, or else the recipe's own number, if None.
        checkpoint_every: save a checkpoint every this many steps, and after the last; as the earlier run did if None,
            and none at all in a new run.
        training: how to train, for a recipe that is trained; by default as in the earlier run.
        watch: serve a page that follows the run from the first process; its address goes to stderr.

    Raises:
        Interrupted: on Ctrl-C; config, plan, checkpoints and what was measured so far are in the folder.
        CheckpointError: a run of this recipe cannot be saved, or the earlier run cannot be continued.
        RunFolderError: the folder cannot be written to. Where that shows after the last step it is `ResultNotWritten`,
            which has the result.
    """
    try:
        options = (training or TrainingOptions()).or_as_before(folder.earlier or {})
        with _watched(folder) if watch and is_first() else contextlib.nullcontext(), run_times() as times:
            result = _run(load(prepared.recipe.runner)(prepared), folder, steps, checkpoint_every, options, times)
        if is_first():
            _hand_over(result)
        return result
    finally:
        folder.close()


@contextlib.contextmanager
def _watched(folder: RunFolder) -> Iterator[None]:
    """Serve a page that follows the run in this block."""
    from outlay.report.live_server import served  # most runs do without

    with served(folder.path) as server:
        print(f"watch it at {server.address}", file=sys.stderr, flush=True)
        yield


def _run(
    kind: RunKind,
    folder: RunFolder,
    steps: int | None,
    checkpoint_every: int | None,
    training: TrainingOptions,
    times: RunTimes,
) -> Result:
    program, earlier = kind.program, folder.earlier or {}
    if steps is None:
        steps = int(earlier.get("num_steps", kind.recipe.steps))
    if checkpoint_every is None:
        checkpoint_every = earlier.get("checkpoint_every")
    config = _config(kind, steps, checkpoint_every, earlier, training)
    saving = _saving(kind, folder, checkpoint_every) if checkpoint_every else None
    start = None
    if folder.earlier is not None:  # opened with `resume`, and there is one
        _check_same_run(folder, config, kind.identity)
        start = saving.restore(program) if saving else None
        _check_steps_left(folder, start.step if start else 0, steps)
    kind.check(steps)
    kind.check_training(training)
    kind = kind.for_steps(steps - (start.step if start else 0))
    # Everything that can fail has failed by now: from here on the run that this one replaces goes (decision 13).
    folders = {
        RECORDING: bool(kind.recipe.record),
        COLLECTED: saving is not None and kind.collects,
        TENSORBOARD: TENSORBOARD in (training.log or ()),
    }
    folder.check_room(kind.results, folders)
    if saving is not None and is_first():
        first = start.step if start else -1
        CheckpointFolder(folder.checkpoints_path).check_free(
            lambda step: first < step <= steps and saving.is_due(step, is_last=step == steps)
        )
    with times.spending(COMPILE):
        check_ready(kind.program)
    with _logged(kind, folder, config, start, training) as log:
        folder.write_config(config)
        folder.keep_times(times)
        folder.write_plan(program.plan)
        if log and is_first():
            folder.will_write(LOG_FILE)
        folder.remove_old_results(kind.results, continued=start is not None, folders=folders)
        return kind.run(RunSetup(steps, folder, saving, start, training, log))


def _logged(
    kind: RunKind, folder: RunFolder, config: Mapping[str, Any], start: Saved | None, training: TrainingOptions
) -> contextlib.AbstractContextManager[MetricsLog | None]:
    """Return what sends the metrics on in its block; None if they go into the run folder alone."""
    if not training.log:
        return contextlib.nullcontext()
    from outlay.train.metrics_log import MetricsLog  # most runs do without

    after = start.step if start else 0
    return MetricsLog(training.log, folder=folder.path, project=kind.recipe.name, config=config, after=after)


def _saving(kind: RunKind, folder: RunFolder, every: int) -> Saving:
    kind.check_saving(every)
    collected = folder.path / COLLECTED if kind.collects else None
    return Saving(Checkpoints(folder.checkpoints_path), every, collected=collected, step_unit=kind.step_unit)


def _config(
    kind: RunKind,
    steps: int,
    checkpoint_every: int | None,
    earlier: Mapping[str, Any],
    training: TrainingOptions,
) -> dict[str, Any]:
    recipe, program = kind.recipe, kind.program
    last = [{name: earlier.get(name) for name in _ARRANGEMENT}] if earlier else []
    return {
        "recipe": recipe.name,
        "layout": kind.prepared.layout_name,
        "mode": program.mode,
        "rules": [str(rule) for rule in program.layout],
        "mesh": program.plan.mesh.to_dict(),
        "num_steps": steps,
        "checkpoint_every": checkpoint_every,
        "seed": recipe.seed,
        "record": list(recipe.record),
        "stride": recipe.stride,
        **{name: value for name, value in asdict(training).items() if value is not None},
        **kind.config(),
        "command": _command(),
        "commit": commit_of(Path.cwd()),
        "versions": {"python": platform.python_version(), **versions(("outlay", "jax", "jaxlib"))},
        "before": [*earlier.get("before", ()), *last],
    }


_ARRANGEMENT = ("layout", "mode", "rules", "mesh", "command", "commit", "versions")
"""What may be another each time a run is continued; its config tells how it was each time before."""


def _command() -> str:
    """Return what was typed, or the script that runs; a command line may be as long as a file."""
    name = Path(sys.argv[0]).name
    return shlex.join(["outlay" if name == "__main__.py" else name, *sys.argv[1:]])[:_LONGEST_COMMAND]


_LONGEST_COMMAND = 2000


def check_ready(program: Program) -> None:
    """Raise if a run could not take its first step, while what it replaces is still there.

    Args:
        program: the recipe's program. It is compiled, which the run would do next.

    Raises:
        ProgramError: the target is one that nothing runs on.
    """
    check_runnable(program.mesh, "a state cannot be made")
    beat(None, "compiling")
    _ = program.compiled_parts  # asking for it compiles it


_WHEN_ABSENT: Mapping[str, Any] = {"record": [], "stride": 1}
"""What an entry of the config was before configs had it."""


def _check_same_run(folder: RunFolder, config: Mapping[str, Any], identity: Sequence[str]) -> None:
    """Raise if the run in a folder cannot be continued as this one.

    Raises:
        CheckpointError: it saved no checkpoints, or is another run; every difference is listed.
    """
    earlier = folder.earlier or {}
    if not earlier.get("checkpoint_every"):
        raise CheckpointError(
            f"the run in {folder.path} saved no checkpoints, so there is nothing to continue it from\n"
            "  fix: --force to start again, with --checkpoint-every N"
        )
    before = {name: earlier.get(name, _WHEN_ABSENT.get(name)) for name in identity}
    if not (config.get("examples") and before.get("examples")):  # data of the user's own class are not counted
        before.pop("examples", None)
    if other := [name for name in before if config[name] != before[name]]:
        lines = "".join(f"\n  {name}: {before[name]} there, {config[name]} now" for name in other)
        raise CheckpointError(
            f"the run in {folder.path} is another one and cannot be continued: "
            f"{counted(len(other), 'difference')}{lines}"
            "\n  fix: another --run-folder, or the recipe and options of that run"
        )


def _check_steps_left(folder: RunFolder, step: int, num_steps: int) -> None:
    """Raise if a checkpoint is of a later step than the last of this run."""
    if step > num_steps:
        raise CheckpointError(
            f"{folder.checkpoints_path} has a checkpoint of step {step}, and a run of {num_steps} steps ends before it"
            f"\n  fix: {step} steps or more, or another folder"
        )


RESULT = "OUTLAY_RESULT"
"""The variable that names the file in which the first process of a job leaves its result for `outlay.run`."""


def _hand_over(result: Result) -> None:
    """Leave the result of a run where `outlay.run`, in the process that has asked for it, looks for it."""
    if file := os.environ.get(RESULT):
        Path(file).write_bytes(pickle.dumps(result))


def _has_begun() -> bool:
    """Return whether an earlier start of this job has taken the run folder, so that this one continues it."""
    folder = own_job_folder()
    return folder is not None and folder.has(Flag.BEGUN)


def _mark_begun() -> None:
    """Mark that this job has taken the run folder, for later starts of it."""
    if folder := own_job_folder():
        folder.set(Flag.BEGUN)
