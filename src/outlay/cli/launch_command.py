"""`outlay launch`: run the same command in many processes on this machine, as one job."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from outlay.cli.output import raise_when_unread


def _seconds(text: str) -> float:
    """Return a number of seconds; infinity for `off`."""
    if text == "off":
        return float("inf")
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds < float("inf"):
        raise typer.BadParameter(f"{text!r} is neither a number of seconds, 0.1 or more, nor 'off'")
    return seconds


InOrderOption = Annotated[
    bool, typer.Option("--in-order", help="Show the output by steps: of each step process 0's lines, then 1's, ...")
]

StuckAfterOption = Annotated[
    float | None,
    typer.Option(
        "--stuck-after",
        parser=_seconds,
        metavar="SECONDS|off",
        help="End the job, with the stacks of all processes, if one gives no sign of life (a step or a line of "
        "output) for so long. By default 5 minutes between steps, and 20 times the longest pause so far.",
    ),
]

StartWithinOption = Annotated[
    float | None,
    typer.Option(
        "--start-within",
        parser=_seconds,
        metavar="SECONDS|off",
        help="The same until the first step is finished; by default --stuck-after, else half an hour.",
    ),
]


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
    stuck_after: StuckAfterOption = None,
    start_within: StartWithinOption = None,
    max_restarts: Annotated[
        int, typer.Option("--max-restarts", min=0, metavar="N", help="Start again up to N times after a failure.")
    ] = 0,
    in_order: InOrderOption = False,
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
