"""`outlay run`: run a recipe and leave a run folder, in one process or in several that it starts itself."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outlay.cli.launch_command import InOrderOption, StartWithinOption, StuckAfterOption
from outlay.cli.options import JsonOption, ProgramOptions, RecipeArgument, load_recipe, with_program_options
from outlay.cli.output import ANSWERS, print_answer, print_facts, print_picture, say, warn_unread

if TYPE_CHECKING:
    from outlay.jobs.stall import Limits
    from outlay.recipes.run_kind import Result


@with_program_options()
def run(
    context: typer.Context,
    recipe: RecipeArgument,
    options: ProgramOptions,
    steps: Annotated[
        int | None,
        typer.Option("--steps", min=1, metavar="N", help="Steps to take; by default the recipe's own number."),
    ] = None,
    run_folder: Annotated[
        Path | None, typer.Option("--run-folder", metavar="DIR", help="The run folder; by default runs/RECIPE.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the run that is in the run folder.")] = False,
    checkpoint_every: Annotated[
        int | None,
        typer.Option("--checkpoint-every", min=1, metavar="N", help="Save a checkpoint every N steps and at the end."),
    ] = None,
    evaluate_every: Annotated[
        int | None,
        typer.Option(
            "--evaluate-every", min=1, metavar="N", help="Evaluate on held-out data every N steps, not only at the end."
        ),
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option(
            "--patience",
            min=1,
            metavar="N",
            help="End training when evaluate.loss has not improved for N evaluations; with --evaluate-every.",
        ),
    ] = None,
    steps_per_call: Annotated[
        int | None,
        typer.Option(
            "--steps-per-call", min=1, metavar="N", help="Take N steps in one compiled call; for small steps."
        ),
    ] = None,
    log: Annotated[
        list[str] | None,
        typer.Option(
            "--log",
            metavar="tensorboard|wandb|mlflow",
            help="Log the metrics to it too; repeatable. off ends that of the run that is continued.",
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Continue the run in the run folder, if there is one, from its last checkpoint."),
    ] = False,
    record: Annotated[
        list[str] | None,
        typer.Option(
            "--record",
            metavar="PATTERN",
            help="What to record: leaves such as params.**.bias, or addresses of the recipe; repeatable.",
        ),
    ] = None,
    stride: Annotated[int | None, typer.Option("--stride", min=1, metavar="N", help="Record every N steps.")] = None,
    processes: Annotated[
        int | None,
        typer.Option("--processes", min=1, metavar="P", help="Run in P processes, which share the devices evenly."),
    ] = None,
    max_restarts: Annotated[
        int,
        typer.Option(
            "--max-restarts",
            min=0,
            metavar="N",
            help="With --processes: after a failure, start again from the last checkpoint, up to N times.",
        ),
    ] = 0,
    plan: Annotated[
        bool, typer.Option("--plan", help="First print where every array lives, as outlay show; the report has it too.")
    ] = False,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Serve a page on this machine that follows the run, as outlay watch; see stderr."),
    ] = False,
    in_order: InOrderOption = False,
    stuck_after: StuckAfterOption = None,
    start_within: StartWithinOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a recipe, for example train it; metrics, recording, plan and report go to a run folder."""
    if force and resume:
        raise typer.BadParameter("--force would replace the run that it is to continue", param_hint="--resume")
    if max_restarts and not (checkpoint_every or resume):
        raise typer.BadParameter(
            "it continues from the last checkpoint, but this run saves none; add --checkpoint-every 100, or as many "
            "steps as you can afford to repeat",
            param_hint="--max-restarts",
        )
    from outlay.jobs.process_info import is_launched

    logged = _log_names(log)
    if processes is not None and not is_launched():
        from outlay.jobs.stall import Limits

        limits = Limits(stuck_after, start_within)
        of_job = {"max_restarts": max_restarts, "in_order": in_order, "limits": limits, "as_json": as_json}
        if watch:
            from outlay.report.live_server import WATCH, same_address

            os.environ[WATCH] = same_address()  # the processes of the job inherit it
        raise typer.Exit(run_in_processes(processes, options.devices, **of_job))
    of_jobs = {
        "--max-restarts": max_restarts,
        "--in-order": in_order,
        "--stuck-after": stuck_after,
        "--start-within": start_within,
    }
    if processes is None and any(of_jobs.values()):
        hint = next(name for name, given in of_jobs.items() if given)
        raise typer.BadParameter("it needs --processes P; P may be 1", param_hint=hint)
    if checkpoint_every or resume:
        from outlay.jobs.stop_request import listen

        listen()  # from the start: a request while the program is compiled counts too
    devices = own_devices(options.devices, is_shared=processes is not None)
    own = replace(options, devices=devices)
    prepared = own.prepare(load_recipe(context, recipe, own, record=record or (), stride=stride))
    from outlay.recipes.run_kind import ResultNotWritten, TrainingOptions
    from outlay.recipes.runner import open_folder, run_prepared
    from outlay.train.multihost import is_first
    from outlay.train.patience import Patience

    training = TrainingOptions(evaluate_every, None if patience is None else Patience(patience), steps_per_call, logged)
    asked = {"steps": steps, "checkpoint_every": checkpoint_every, "training": training}
    folder = open_folder(prepared, run_folder, force=force, resume=resume, **asked)
    if is_first() and not as_json:
        if plan:
            from outlay.report.show import show

            print_picture(show(prepared.program.plan))
        warn_unread(f"the run goes on, and its results are in {folder.path}")
    try:
        result = run_prepared(prepared, folder, watch=watch, **asked)
    except ResultNotWritten as error:
        _print(error.result, as_json)
        raise
    _print(result, as_json)


def _log_names(log: list[str] | None) -> tuple[str, ...] | None:
    """Return what to log to; None if nothing was said, and nothing is loaded for it."""
    if not log:
        return None
    from outlay.train.metrics_log import log_names

    return log_names(log)


def _print(result: Result, as_json: bool) -> None:
    from outlay.train.multihost import is_first

    if is_first():
        if not as_json:
            say("")
        print_facts(result, as_json=as_json)


def run_in_processes(
    num_processes: int,
    devices: int | None,
    *,
    max_restarts: int,
    in_order: bool,
    limits: Limits,
    as_json: bool,
) -> int:
    """Run this same command in several processes; return the exit code.

    Args:
        num_processes: how many.
        devices: simulated devices that they share; None to use attached ones.
        max_restarts: how often to start all of them again after one has failed.
        in_order: show their output by steps.
        limits: how long a process may give no sign of life.
        as_json: print the result of process 0 as one JSON document.
    """
    import tempfile

    from outlay.core.flag_check import check_flags
    from outlay.launcher.job import Job
    from outlay.launcher.run_job import run_job

    if devices is not None and (devices < num_processes or devices % num_processes):
        raise typer.BadParameter(
            f"{devices} devices cannot be shared evenly by {num_processes} processes; "
            f"{' or '.join(str(num) for num in range(1, devices + 1) if devices % num == 0)} can share them",
            param_hint="--processes",
        )
    check_flags()  # here once: the processes inherit the answer, and do not start XLA to ask
    each = devices // num_processes if devices is not None else None
    # Not sys.argv: that lacks `-m outlay` and Python's own options.
    command = [sys.executable, *sys.orig_argv[1:]]
    job = Job(command, num_processes, each, limits=limits, max_restarts=max_restarts, in_order=in_order)
    if not as_json:
        return run_job(job)
    with tempfile.TemporaryDirectory(prefix="outlay-answers-") as folder:
        os.environ[ANSWERS] = folder  # the processes of the job inherit it
        try:
            return run_job(job)
        finally:
            del os.environ[ANSWERS]
            print_answer(Path(folder))


def own_devices(devices: int | None, *, is_shared: bool) -> int | None:
    """Join the job if this process is in one; return how many devices to simulate after that.

    Args:
        devices: the value of `--devices`.
        is_shared: whether the processes share these devices, and have them already.
    """
    from outlay.jobs.join import join

    num_processes = join().num_processes
    if num_processes == 1:
        return devices
    if devices is not None and not is_shared:
        raise typer.BadParameter(
            f"in a job of {num_processes} processes, each has the devices that the job gives it: leave this out",
            param_hint="--devices",
        )
    return None
