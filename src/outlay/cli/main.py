"""`outlay`: the commands, and how their failures look."""

from __future__ import annotations

import gc
import signal
import sys
import warnings
from typing import Annotated

import typer

from outlay.cli import interrupt, output
from outlay.cli.calibrate_command import calibrate
from outlay.cli.checkpoint_command import checkpoint
from outlay.cli.choose_command import choose
from outlay.cli.command_help import examples_of
from outlay.cli.compiler_command import compiler
from outlay.cli.completion_command import completion
from outlay.cli.diff_command import diff
from outlay.cli.doctor_command import doctor
from outlay.cli.estimate_command import estimate
from outlay.cli.examples_command import examples
from outlay.cli.explain_command import explain
from outlay.cli.failures import EXIT_CODES, Commands
from outlay.cli.launch_command import LaunchCommand, launch
from outlay.cli.options import RECIPE_OPTIONS
from outlay.cli.profile_command import profile
from outlay.cli.run_command import run
from outlay.cli.runs_command import runs
from outlay.cli.show_command import show
from outlay.cli.slurm_command import slurm
from outlay.cli.verify_command import verify
from outlay.cli.watch_command import watch
from outlay.core.source_owner import part_of_outlay

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
for needs_recipe in (run, show, explain, estimate, profile, diff, verify, choose):
    app.command(context_settings=RECIPE_OPTIONS, epilog=examples_of(needs_recipe.__name__))(needs_recipe)
for other in (calibrate, compiler, doctor, completion, runs, watch):
    app.command(epilog=examples_of(other.__name__))(other)
app.command(cls=LaunchCommand, epilog=examples_of("launch"))(launch)
app.add_typer(checkpoint)
app.add_typer(examples)
app.add_typer(slurm)


def _version(asked: bool) -> None:
    if asked:
        from outlay.core.runtime_flags import versions

        output.say(f"outlay {versions(('outlay',))['outlay']}")
        raise typer.Exit


_CODES = f"Exit codes: {', '.join(f'{code} {meaning}' for code, meaning in EXIT_CODES.items())}."


@app.callback(epilog=f"{examples_of('')}\n\n{_CODES}")
def outlay(
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Show Python's traceback with an error; for reports of bugs.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version of Outlay.")
    ] = False,
) -> None:
    """Lay a JAX program out over devices: see where every array lives, price it, prove it, run it."""


def main() -> None:
    """Run the `outlay` command."""
    # Imports and traces make millions of small objects, most of which stay: to look among them for cycles as often as
    # Python does took a twentieth of a run of a few steps.
    gc.set_threshold(10_000)
    interrupt.answer()
    output.survive_closed_pipes()
    warnings.formatwarning = formatted_warning
    try:
        app()
    except SystemExit as end:
        if interrupt.has_come() and not _has_others():
            interrupt.leave(end.code if isinstance(end.code, int) else interrupt.STOPPED)
        if interrupt.answers():
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # everything is printed, and nothing is left to catch it
        raise


_of_python = warnings.formatwarning


def formatted_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Return a warning of Outlay's as its text alone, and others as Python does: where theirs come from is of use."""
    if issubclass(category, UserWarning) and part_of_outlay(filename) is not None:
        return f"warning: {message}\n"
    return _of_python(message, category, filename, lineno, line)


def _has_others() -> bool:
    """Return whether this process belongs to a job of several, which must learn how it ended."""
    joined = sys.modules.get("outlay.jobs.current_job")
    place = joined.joined() if joined else None
    return place is not None and place.num_processes > 1
