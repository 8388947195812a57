"""`outlay`: the commands, and what their failures look like."""

from __future__ import annotations

from typing import Annotated

import typer

from outlay.cli.brain import brain
from outlay.cli.calibrate import calibrate
from outlay.cli.checkpoint import checkpoint
from outlay.cli.choose import choose
from outlay.cli.doctor import doctor
from outlay.cli.explain import explain
from outlay.cli.failures import Commands
from outlay.cli.launch import LaunchCommand, launch
from outlay.cli.options import RECIPE_OPTIONS
from outlay.cli.run import run
from outlay.cli.show import show
from outlay.cli.slurm import slurm
from outlay.cli.verify import verify

# Plain help: rich would double the time that `outlay --help` takes.
app = typer.Typer(
    cls=Commands,
    name="outlay",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for needs_recipe in (run, show, explain, verify, choose):
    app.command(context_settings=RECIPE_OPTIONS)(needs_recipe)
for other in (calibrate, doctor):
    app.command()(other)
app.command(cls=LaunchCommand)(launch)
app.add_typer(brain)
app.add_typer(checkpoint)
app.add_typer(slurm)


@app.callback(epilog="Exit codes: 0 well, 1 a check failed, 2 an error in what was asked, 130 stopped by Ctrl-C.")
def outlay(
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Show Python's traceback with an error; for reports of bugs.")
    ] = False,
) -> None:
    """Lay a JAX program out over devices: see where every array lives, price it, prove it, run it."""


def main() -> None:
    """The `outlay` command."""
    app()
