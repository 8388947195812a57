"""`outlay.run`: what `outlay run` does, in this process or in several that it starts."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from outlay.core.called_as import called_as
from outlay.core.error_types import LaunchError, RecipeError
from outlay.devices.simulated import simulate
from outlay.jobs.exit_codes import INTERRUPTED
from outlay.jobs.process_info import is_launched
from outlay.program.compiler_options import RequestedOptions
from outlay.program.program import Program
from outlay.recipes.find import find_recipe, name_of, with_recording
from outlay.recipes.prepare import prepare
from outlay.recipes.recipe import Recipe
from outlay.recipes.run_kind import Result, TrainingOptions
from outlay.recipes.runner import RESULT, open_folder, run_prepared
from outlay.search.candidate import words_of
from outlay.train.patience import Patience


@called_as(
    'outlay.run("digits", devices=8, layout="fsdp")',
    num_steps="steps=",
    epochs="steps=: the number of batches of all epochs",
    num_epochs="steps=: the number of batches of all epochs",
    wandb="log='wandb'",
    tensorboard="log='tensorboard'",
    mlflow="log='mlflow'",
    logger="log=",
    batch_size="options={'batch_size': ...}: what a recipe takes is in `outlay run digits --help`",
    folder="run_folder=",
    seed="options={'seed': ...}",
    num_devices="devices=",
    program="outlay.fit(program, batches, steps=100, key=jax.random.key(0))",
)
def run(
    recipe: Recipe | str | Callable[..., Recipe],
    *,
    options: Mapping[str, Any] | None = None,
    devices: int | None = None,
    target: str | None = None,
    mesh: str | Mesh | None = None,
    layout: str | None = None,
    mode: str | None = None,
    compiler_options: RequestedOptions = "preset",
    steps: int | None = None,
    run_folder: Path | str | None = None,
    force: bool = False,
    resume: bool = False,
    checkpoint_every: int | None = None,
    evaluate_every: int | None = None,
    patience: int | Patience | None = None,
    steps_per_call: int | None = None,
    log: str | Sequence[str] | None = None,
    record: str | Sequence[str] = (),
    stride: int | None = None,
    processes: int | None = None,
    max_restarts: int = 0,
    watch: bool = False,
    in_order: bool = False,
    stuck_after: float | None = None,
    start_within: float | None = None,
) -> Result:
    """Run a recipe and leave a run folder, as `outlay run` does. Progress goes to stderr.

    With `processes` this process starts that many, each of which runs the command, and uses no device itself; what they
    print is printed here. Call it under `if __name__ == "__main__":`, since they may import the file that does.

    Args:
        recipe: the recipe, or what names one on the command line, `digits` or `path/to/file.py:function`, or the
            function itself. Other processes must be able to find it.
        options: options of the recipe, such as `{"model": "tiny"}`, unless it is made already.
        devices: the number of devices to simulate, as `outlay.simulate` does; `processes` share them evenly.
        target: the hardware to run on, which has to be here, such as `cpu:8`; the devices that JAX has if None.
        mesh: a mesh, or one as text such as `data=4,model=2`; the one that goes with the layout if None.
        layout: the name of one of its layouts, or a TOML file; its default if None.
        mode: `auto`, `manual` or `placed`; the one that goes with the layout if None.
        compiler_options: as `outlay.program` takes them.
        steps: steps to take in all; the recipe's own number, or the earlier run's, if None.
        run_folder: where config, plan, metrics, checkpoints, picture and report go; `runs/NAME` if None.
        force: replace the run that is in the folder.
        resume: go on after the newest checkpoint of the run that is in the folder, if there is one.
        checkpoint_every: the number of steps from one checkpoint to the next; the last step is saved too.
        evaluate_every: the number of steps from one evaluation on held-out data to the next, for a recipe that is
            trained; by default only the last step is evaluated.
        patience: the number of evaluations after which training ends if `evaluate.loss` was no better than before;
            an `outlay.train.Patience` says which metric, and by how much.
        steps_per_call: the steps in one compiled call, for a recipe that is trained; see `outlay.fit`.
        log: what the metrics are logged to beside the run folder, for a recipe that is trained: `tensorboard`, `wandb`
            or `mlflow`, or several; see `outlay.train.MetricsLog`. `off` ends that of the run that is continued.
        record: what is recorded: patterns of leaves of the state, such as `params.**.bias`, or of what else the
            recipe has addresses for; as the recipe says if there are none.
        stride: the number of steps from one record to the next.
        processes: the number of processes of this machine to run in.
        max_restarts: start them again so often after one has failed, from the last checkpoint.
        watch: serve a page on this machine that follows the run; its address goes to stderr.
        in_order: show the output of the processes by steps.
        stuck_after: the seconds without a sign of life of one after which all end; `math.inf` for never.
        start_within: the same until the first step is finished.

    Returns:
        What the run came to; with `processes`, what the first of them returned.

    Raises:
        RecipeError: there is no such recipe or layout, or what follows its last step failed.
        RunFolderError: the folder holds something else, or cannot be written to.
        LaunchError: the processes cannot be started, or one of them has failed.
        Interrupted: on Ctrl-C; what was saved so far is in the folder. With `processes` it is `KeyboardInterrupt`.

    Example:
        >>> result = outlay.run("digits", layout="fsdp", steps=2, run_folder="runs/two_steps", force=True)
        >>> result.to_dict()["num_steps"]
        2
    """
    if isinstance(recipe, Program):
        raise RecipeError(
            "outlay.run takes a recipe, and this is a program\n"
            "  fix: outlay.fit(program, batches, steps=100, key=jax.random.key(0)), or program(state, batch) for a step"
        )
    given = dict(locals())  # what the command is given too, if other processes are to run
    if force and resume:
        raise RecipeError(
            "with force=True the run that resume=True would continue is replaced\n  fix: give one of them"
        )
    patterns = [record] if isinstance(record, str) else record
    logged = None
    if log is not None:
        from outlay.train.metrics_log import log_names  # most runs do without

        logged = log_names(log)
    of_job = {
        "max_restarts": max_restarts or None,
        "in_order": in_order,
        "stuck_after": stuck_after,
        "start_within": start_within,
    }
    if processes is not None:
        given |= {"record": patterns, "log": log if logged is None else logged or ["off"], **of_job}
        del given["recipe"], given["options"]
        return _run_in_processes(_name_for_others(recipe), [*words_of_arguments(given), *words_of(options or {})])
    if asked := [name for name, value in of_job.items() if value]:
        raise RecipeError(f"{', '.join(asked)}: only with processes=\n  fix: processes=P too; P may be 1")
    if devices is not None:
        simulate(devices)
    if not isinstance(recipe, Recipe):
        ready = find_recipe(name_of(recipe), words_of(options or {}), record=patterns, stride=stride)
    elif options:
        raise RecipeError(
            f"{recipe.name!r} is made already, and takes no options\n  fix: pass the function that makes it"
        )
    else:
        ready = with_recording(recipe, patterns, stride)
    prepared = prepare(ready, layout=layout, mesh=mesh, mode=mode, target=target, compiler_options=compiler_options)
    training = TrainingOptions(
        evaluate_every, Patience(patience) if isinstance(patience, int) else patience, steps_per_call, logged
    )
    asked = {"steps": steps, "checkpoint_every": checkpoint_every, "training": training}
    folder = open_folder(prepared, run_folder, force=force, resume=resume, **asked)
    return run_prepared(prepared, folder, watch=watch, **asked)


def words_of_arguments(given: Mapping[str, Any]) -> list[str]:
    """Write the arguments of `outlay.run` as options of the command; None and False are left out.

    Raises:
        RecipeError: some are objects that only this process has; all are listed.

    >>> words_of_arguments({"layout": "fsdp", "mode": None, "force": True, "record": ["params.**", "step"]})
    ['--layout', 'fsdp', '--force', '--record', 'params.**', '--record', 'step']
    """
    plain = str | int | float | Path | Sequence | None
    if objects := [name for name, value in given.items() if not isinstance(value, plain)]:
        raise RecipeError(
            f"processes of their own cannot be given this process's objects: {', '.join(objects)}"
            "\n  fix: as text or a number, as on the command line, or in the recipe's own function"
        )
    words = []
    for name, value in given.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(option)
        elif isinstance(value, Sequence) and not isinstance(value, str):
            words += [word for each in value for word in (option, each)]
        elif value is not None and value is not False:
            words += [option, "off" if value == float("inf") else str(value)]
    return words


def _name_for_others(recipe: Recipe | str | Callable[..., Recipe]) -> str:
    """Return the name by which processes that this one starts find a recipe.

    Raises:
        RecipeError: they cannot, or would start processes in their turn.
    """
    if is_launched():
        raise RecipeError(
            "processes= is asked for in a process of a job, each of which would start a job of its own"
            '\n  fix: call it under `if __name__ == "__main__":`; under outlay launch leave it out'
        )
    if isinstance(recipe, Recipe):
        raise RecipeError(
            f"processes of their own cannot be given the recipe {recipe.name!r}, an object of this one"
            "\n  fix: its name, 'path/to/file.py:function', or the function that makes it"
        )
    return name_of(recipe)


def _run_in_processes(recipe: str, words: Sequence[str]) -> Result:
    """Run the command `outlay run` with `--processes`; return what the first of its processes returned.

    It is a process of its own that starts and watches the others: this one may have started JAX, after which it should
    not fork, and may not be in its main thread, which alone hears signals. What they print is printed here.

    Args:
        recipe: what names it on the command line.
        words: options of the command and of the recipe, `--processes` among them.

    Raises:
        LaunchError: the command has failed; what it said stands above.
        KeyboardInterrupt: somebody has interrupted this process, or the command.
    """
    with tempfile.TemporaryDirectory(prefix="outlay-result-") as folder:
        file = Path(folder, "result.pickle")
        command = [sys.executable, "-m", "outlay", "run", recipe, *words]
        process = subprocess.Popen(command, env={**os.environ, RESULT: str(file)})
        try:
            code = process.wait()
        except BaseException:
            process.send_signal(signal.SIGINT)  # a notebook interrupts its own process only
            process.wait()
            raise
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        if code:
            raise LaunchError(f"the run of {recipe} in processes of its own ended with exit code {code}: see above why")
        return pickle.loads(file.read_bytes())  # safe: only what this process has started knows the folder
