"""`outlay launch`: run the same command in many processes on this machine, as one job."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from outlay.cli.output import raise_when_unread
from outlay.cli.typer_options import command_option
from outlay.train.run_options import RunOptions


class LaunchCommand(TyperCommand):
    """Require two dashes before the command, so that no option goes to the wrong program."""

    allow_interspersed_args = False  # what follows the command are options of its own, even where they are ours too

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Check for the dashes, then parse."""
        if "--" not in args and not {"-h", "--help"} & set(args):
            raise typer.BadParameter(
                "the command to run must come after two dashes, as in: outlay launch -n 2 -- python train.py",
                param_hint="--",
            )
        return super().parse_args(ctx, args)


def launch(
    num: Annotated[int, typer.Option("-n", "--processes", metavar="N", help="How many processes.")],
    command: Annotated[
        list[str] | None, typer.Argument(metavar="-- COMMAND...", help="What each process runs, after two dashes.")
    ] = None,
    devices_per_process: Annotated[
        int | None,
        typer.Option(
            "--devices-per-process",
            metavar="D",
            help="Simulate D devices in each; by default it gets a share of the GPUs.",
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option("--port", min=1, max=65535, metavar="P", help="The coordinator's port; by default a free one."),
    ] = None,
    stuck_after: Annotated[float | None, command_option(RunOptions, "stuck_after")] = None,
    start_within: Annotated[float | None, command_option(RunOptions, "start_within")] = None,
    max_restarts: Annotated[
        int, typer.Option("--max-restarts", min=0, metavar="N", help="Start again up to N times after a failure.")
    ] = 0,
    in_order: Annotated[bool, command_option(RunOptions, "in_order")] = False,
) -> None:
    """Run a command in many processes on this machine; if one fails, all end, with its error last."""
    from outlay.jobs.stall import Limits
    from outlay.launcher.job import Job
    from outlay.launcher.run_job import run_job

    job = Job(
        tuple(command or ()),
        num_processes=num,
        devices_per_process=devices_per_process,
        port=port,
        limits=Limits(stuck_after, start_within),
        max_restarts=max_restarts,
        in_order=in_order,
    )
    raise_when_unread()
    raise typer.Exit(run_job(job))
