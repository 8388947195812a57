"""`outlay run`: run a recipe and leave a run folder, in one process or in several that it starts itself."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outlay.cli.options import JsonOption, RecipeArgument, load_recipe, with_options
from outlay.cli.output import ANSWERS, print_answer, print_facts, print_picture, say, warn_unread
from outlay.core.option import flag_of
from outlay.recipes.program_options import ProgramOptions
from outlay.train.run_options import RunOptions

if TYPE_CHECKING:
    from outlay.recipes.recipe_run import RecipeRun
    from outlay.recipes.run_result import Result
    from outlay.train.run_folder import RunFolder


@with_options(program=ProgramOptions, options=RunOptions, before={"plan": "watch"})
def run(
    context: typer.Context,
    recipe: RecipeArgument,
    program: ProgramOptions,
    options: RunOptions,
    plan: Annotated[
        bool, typer.Option("--plan", help="First print where every array lives, as outlay show; the report has it too.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Run a recipe, for example train it; metrics, recording, plan and report go to a run folder."""
    _check_options(options)
    _ = options.loggers  # whether there are such
    from outlay.jobs.process_info import is_launched

    is_shared = options.processes is not None
    if is_shared and not is_launched():
        if options.watch:
            from outlay.report.live_server import WATCH, same_address

            os.environ[WATCH] = same_address()  # the processes of the job inherit it
        raise typer.Exit(run_in_processes(options, program.devices, as_json=as_json))
    if not is_shared and options.of_job:
        raise typer.BadParameter("it needs --processes P; P may be 1", param_hint=flag_of(options.of_job[0]))
    if options.checkpoint_every or options.resume:
        from outlay.jobs.stop_request import listen

        listen()  # from the start: a request while the program is compiled counts too
    own = replace(program, devices=own_devices(program.devices, is_shared=is_shared))
    loaded = load_recipe(context, recipe, own, record=options.patterns, stride=options.stride)
    from outlay.devices.mesh_info import is_first
    from outlay.recipes.prepare import prepare_with
    from outlay.recipes.recipe_run import run_of

    prepared = prepare_with(loaded, own)
    its = run_of(prepared, options)
    folder = its.open_folder()
    if is_first() and not as_json:
        if plan:
            from outlay.report.show import show

            print_picture(show(prepared.program.plan))
        warn_unread(f"the run goes on, and its results are in {folder.path}")
    _print(_result_of(its, folder, as_json), as_json)


def _check_options(options: RunOptions) -> None:
    """Raise for options that exclude or need one another."""
    if options.force and options.resume:
        raise typer.BadParameter("--force would replace the run that it is to continue", param_hint="--resume")
    if options.max_restarts and not (options.checkpoint_every or options.resume):
        raise typer.BadParameter(
            "it continues from the last checkpoint, but this run saves none; add --checkpoint-every 100, or as many "
            "steps as you can afford to repeat",
            param_hint="--max-restarts",
        )


def _result_of(its: RecipeRun, folder: RunFolder, as_json: bool) -> Result:
    """Run a recipe; a result that cannot be written is printed all the same."""
    from outlay.devices.mesh_info import is_first
    from outlay.recipes.run_result import ResultNotWritten, hand_over

    try:
        result = its.run(folder)
    except ResultNotWritten as error:
        _print(error.result, as_json)
        raise
    if is_first():
        hand_over(result)
    return result


def _print(result: Result, as_json: bool) -> None:
    from outlay.devices.mesh_info import is_first

    if is_first():
        if not as_json:
            say("")
        print_facts(result, as_json=as_json)


def run_in_processes(options: RunOptions, devices: int | None, *, as_json: bool) -> int:
    """Run this same command in several processes; return the exit code.

    Args:
        options: how many processes, and how they are started, shown and ended.
        devices: simulated devices that they share; None to use attached ones.
        as_json: print the result of process 0 as one JSON document.
    """
    import tempfile

    from outlay.core.flag_check import check_flags
    from outlay.jobs.stall import Limits
    from outlay.launcher.job import Job
    from outlay.launcher.run_job import run_job

    num_processes = options.processes or 1
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
    job = Job(
        command,
        num_processes,
        each,
        limits=Limits(options.stuck_after, options.start_within),
        max_restarts=options.max_restarts,
        in_order=options.in_order,
    )
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
    """Join the job if this process was started in one; return how many devices to simulate after that.

    Args:
        devices: the value of `--devices`.
        is_shared: whether the processes share these devices, and have them already.
    """
    from outlay.jobs.process_info import SIGNS_OF_A_JOB, read_process_info

    if SIGNS_OF_A_JOB.isdisjoint(os.environ) or read_process_info(os.environ) is None:
        return devices
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
