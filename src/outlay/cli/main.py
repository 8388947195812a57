"""`outlay`: the commands, and how each begins and ends."""

from __future__ import annotations

import gc
import signal
import sys
import traceback
import warnings
from collections.abc import Sequence
from pkgutil import resolve_name
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from outlay.cli import interrupt, output
from outlay.cli.calibrate_command import calibrate
from outlay.cli.checkpoint_command import checkpoint
from outlay.cli.choose_command import choose
from outlay.cli.command_guesses import instead_of
from outlay.cli.command_help import examples_of, write_groups
from outlay.cli.compiler_command import compiler
from outlay.cli.completion_command import completion
from outlay.cli.diff_command import diff
from outlay.cli.doctor_command import doctor
from outlay.cli.estimate_command import estimate
from outlay.cli.examples_command import examples
from outlay.cli.explain_command import explain
from outlay.cli.failures import EXIT_CODES, WRONG_USE, Failure, failure_of
from outlay.cli.launch_command import LaunchCommand, launch
from outlay.cli.options import RECIPE_OPTIONS
from outlay.cli.profile_command import profile
from outlay.cli.run_command import run
from outlay.cli.runs_command import runs
from outlay.cli.show_command import show
from outlay.cli.slurm_command import slurm
from outlay.cli.verify_command import verify
from outlay.cli.watch_command import watch
from outlay.core.error_types import ArgumentError
from outlay.core.source_owner import part_of_outlay
from outlay.jobs.exit_codes import Explained, NoticedExit
from outlay.recipes.find import ABSENT, commands, not_installed

_CLOSED_PIPE = 141  # 128 + SIGPIPE


class _Ended(Exception):
    """Carries the error that ended a command past typer."""


class Commands(TyperGroup):
    """The group of all commands: however a command ends, there is a message and an exit code."""

    def main(self, args: Sequence[str] | None = None, *arguments: Any, **options: Any) -> Any:
        """Run the command that the arguments name, and end with its exit code; without `standalone_mode`, return it."""
        words = list(sys.argv[1:] if args is None else args)
        is_alone = options.get("standalone_mode", True)
        options["standalone_mode"] = False
        with output.command_output(as_json=self._wants_json(words)):
            try:
                code = super().main(words, *arguments, **options)
                if code == interrupt.STOPPED and interrupt.has_come():  # before any command was found
                    output.say("stopped", err=True)
            except SystemExit as end:  # on request, see jobs/stop_request.py: what it prints is printed
                code = end.code
                if code:
                    output.print_failure(Failure(_number(code), "SystemExit", str(end)).to_dict())
                if isinstance(end, NoticedExit):
                    raise
                raise NoticedExit(code) from end  # so that the other processes of a job hear of it, and of its code
            except BaseException as error:
                code = self._fail(error.args[0] if isinstance(error, _Ended) else error, words)
            code = output.finish(code if isinstance(code, int) else 0, closed_pipe=_CLOSED_PIPE, unwritten=WRONG_USE)
        if is_alone:
            raise Explained(code) if code else SystemExit(0)  # one that ends well has nothing to tell other processes
        return code

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command by its name; only for a name that is not Outlay's own, installed packages are asked."""
        if cmd_name not in self.commands:
            self._plug_in()
        return super().get_command(ctx, cmd_name)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands, those of installed packages last."""
        self._plug_in()
        return super().list_commands(ctx)

    def _plug_in(self) -> None:
        for name, reference in commands().items():
            if name not in self.commands:
                self.commands[name] = typer.main.get_group(resolve_name(reference))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the arguments begin with; where there is none, say what to type instead."""
        if args and self.get_command(ctx, args[0]) is None and args[0] in ABSENT:
            raise ArgumentError(not_installed(f"outlay {args[0]}", args[0]))
        if args and self.get_command(ctx, args[0]) is None and (line := instead_of(args)):
            raise ArgumentError(f"there is no command {args[0]!r}\n  fix: {line}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands in groups, each with a whole sentence."""
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        write_groups({name: it for name, it in commands.items() if it and not it.hidden}, ctx, formatter)

    def invoke(self, ctx: typer.Context) -> Any:
        """Run the command; its errors bypass typer, which would print some itself and hide what they are."""
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, SystemExit):
            raise
        except BaseException as error:
            raise _Ended(error) from error

    def _fail(self, error: BaseException, words: Sequence[str]) -> int:
        failure = failure_of(error, words)
        if "--traceback" in words and failure.exit_code != interrupt.STOPPED:
            sys.stderr.write("".join(traceback.format_exception(error)))
        output.say(f"error: {failure.message}" if failure.text is None else failure.text, err=True)
        output.print_failure(failure.to_dict())
        return failure.exit_code

    def _wants_json(self, words: Sequence[str]) -> bool:
        command: Any = self
        for word in words:
            if word == "--":
                break
            if not word.startswith("-") and hasattr(command, "commands"):
                command = command.get_command(None, word) or command
            if word == "--json" and any("--json" in parameter.opts for parameter in command.params):
                return True
        return False


def _number(code: Any) -> int:
    return code if isinstance(code, int) else 0 if code is None else 1


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
