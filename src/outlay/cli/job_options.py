"""The options of `outlay launch` that `outlay run` has too; alone, for the launcher imports no JAX."""

from __future__ import annotations

from typing import Annotated

import typer


def _seconds(text: str) -> float:
    """Seconds, or infinitely many."""
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
        help="End the job, with the stacks of all processes, after so long without a sign of life of one: a step or a "
        "line of output. Without it, 5 minutes between steps, and 20 times the longest time that there was.",
    ),
]

StartWithinOption = Annotated[
    float | None,
    typer.Option(
        "--start-within",
        parser=_seconds,
        metavar="SECONDS|off",
        help="The same until the first step is finished; without it, what --stuck-after says, else half an hour.",
    ),
]
