"""`outlay slurm`: write the batch script that runs a recipe, or a program, on a SLURM cluster."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from outlay.cli.options import RECIPE_OPTIONS, command_group, own_options
from outlay.cli.output import say
from outlay.core.error_types import LaunchError
from outlay.core.suggest import TYPO
from outlay.core.terminal_text import visible

if TYPE_CHECKING:
    from outlay.slurm.slurm_preset import Preset
    from outlay.slurm.slurm_script import Script

slurm = command_group(
    "slurm",
    help="Batch scripts for SLURM clusters.",
    epilog="Your own presets are in ~/.config/outlay/slurm.toml, which init writes; your own template "
    "~/.config/outlay/slurm.sh.j2 is used instead of Outlay's, if there is one.",
)
_AFTER_DASHES = "outlay.slurm.after_dashes"


class ScriptCommand(TyperCommand):
    """Keep what stands after two dashes apart: alone it is a program, after a recipe it belongs to the recipe."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take it off, then parse."""
        at = args.index("--") if "--" in args else len(args)
        ctx.meta[_AFTER_DASHES] = args[at + 1 :]
        return super().parse_args(ctx, args[:at])


@slurm.command(cls=ScriptCommand, context_settings=RECIPE_OPTIONS)
def run(
    context: typer.Context,
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="RECIPE | -- COMMAND...", help="A recipe, as for outlay run; or any program, after two dashes."
        ),
    ] = None,
    nodes: Annotated[int | None, typer.Option("--nodes", metavar="N", help="How many nodes; by default 1.")] = None,
    gpus_per_node: Annotated[
        int | None, typer.Option("--gpus-per-node", metavar="G", help="The GPUs of each node; 0 for the CPUs.")
    ] = None,
    tasks_per_node: Annotated[
        int | None,
        typer.Option("--tasks-per-node", metavar="T", help="Processes on each node: 1, or by default one per GPU."),
    ] = None,
    cpus_per_task: Annotated[
        int | None, typer.Option("--cpus-per-task", metavar="C", help="The cores of each process.")
    ] = None,
    partition: Annotated[str | None, typer.Option("--partition", metavar="P", help="Where the job runs.")] = None,
    time: Annotated[str | None, typer.Option("--time", metavar="HH:MM:SS", help="The time limit.")] = None,
    account: Annotated[str | None, typer.Option("--account", metavar="A", help="Who pays.")] = None,
    constraint: Annotated[
        str | None, typer.Option("--constraint", metavar="F", help="Features that the nodes must have.")
    ] = None,
    qos: Annotated[str | None, typer.Option("--qos", metavar="Q", help="The quality of service.")] = None,
    module: Annotated[
        list[str] | None, typer.Option("--module", metavar="NAME", help="A module to load; may be repeated.")
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option("--env", metavar="NAME=VALUE", help="A variable to set; may be repeated.")
    ] = None,
    requeue: Annotated[
        bool,
        typer.Option(
            "--requeue",
            help="When preempted or out of time, start again from the last checkpoint (--checkpoint-every).",
        ),
    ] = False,
    preset: Annotated[
        list[str] | None,
        typer.Option(
            "--preset",
            metavar="NAME",
            help="one-task, two-nodes, or one of your own: values for what the options leave open; may be repeated.",
        ),
    ] = None,
    sbatch: Annotated[
        list[str] | None,
        typer.Option("--sbatch", metavar="OPTION", help="Options of sbatch, such as --mem=64G; may be repeated."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Whether to look for the recipe, layout and files here.")
    ] = True,
    template: Annotated[
        Path | None, typer.Option("--template", metavar="FILE", help="A template of your own for the script.")
    ] = None,
    submit: Annotated[bool, typer.Option("--submit", help="Hand the script to sbatch instead of printing it.")] = False,
) -> None:
    """Print the batch script that runs a recipe or a program on a cluster.

    Options that are not known go to `outlay run` there; a program of one's own, and its options, come after two dashes.
    """
    from outlay.cli import slurm_checks
    from outlay.slurm.sbatch_options import read_sbatch_options
    from outlay.slurm.slurm_preset import combined, read_presets
    from outlay.slurm.slurm_script import Script, render
    from outlay.slurm.slurm_script import submit as hand_in

    arguments, program = _words(context, recipe)
    start = combined(preset or (), read_presets())
    if check:
        slurm_checks.check_names(recipe, arguments, program, has_modules=bool(module or start.modules))
    gpus = start.gpus_per_node if gpus_per_node is None else gpus_per_node
    if gpus is None:
        raise LaunchError(
            "how many GPUs does a node have? No option or preset says so"
            "\n  fix: --gpus-per-node 4, or 0 to compute on the CPUs"
        )
    tasks = (start.tasks_per_node or max(gpus, 1)) if tasks_per_node is None else tasks_per_node
    script = Script(
        recipe or "",
        arguments,
        nodes=(start.nodes or 1) if nodes is None else nodes,
        gpus_per_node=gpus,
        tasks_per_node=tasks,
        cpus_per_task=_cpus(cpus_per_task, start, gpus, tasks),
        partition=start.partition if partition is None else partition,
        time=start.time if time is None else time,
        account=start.account if account is None else account,
        constraint=start.constraint if constraint is None else constraint,
        qos=start.qos if qos is None else qos,
        modules=(*start.modules, *(module or ())),
        env={**start.env, **_variables(env or ())},
        requeue=requeue,
        program=program,
        sbatch=read_sbatch_options([*start.sbatch, *(sbatch or ())]),
    )
    _check_devices(arguments, script.num_tasks)
    if check:
        _say_if_apart(script)
    text = render(script, template)
    if submit:
        say(hand_in(text))
    else:  # unescaped, for sbatch: only a terminal would obey control characters
        typer.echo(visible(text) if sys.stdout.isatty() else text, nl=False)


@slurm.command()
def init(
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Its name; default is taken always.")] = "",
) -> None:
    """Ask what your cluster wants, and write it as a preset into your file of presets."""
    from outlay.cli.slurm_init import ask_for_preset, write_preset

    file = write_preset(*ask_for_preset(name))
    say(f"wrote {file}: edit it as you like", err=True)


def _words(context: typer.Context, recipe: str | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the options of the recipe, and the words of a program of one's own; one of them is empty."""
    after: list[str] = context.meta[_AFTER_DASHES]
    if recipe is None or (recipe.startswith("-") and after and not after[0].startswith("-")):
        odd = [] if recipe is None else [recipe]
        _check_typos(odd, own_options(context, ""))
        if odd:
            raise LaunchError(
                f"there is no option {odd[0]} of outlay slurm run"
                f"\n  fix: after the two dashes if it is the program's; --sbatch={odd[0]} if it is sbatch's"
            )
        if not after:
            raise LaunchError(
                "what is the job to run?\n  fix: outlay slurm run digits, or outlay slurm run -- python train.py"
            )
        return (), tuple(after)
    if after and not after[0].startswith("-"):
        raise LaunchError(
            f"{recipe} is a recipe, and {after[0]} after the two dashes a program: a job has one of them"
            f"\n  fix: leave {recipe} out"
        )
    known = own_options(context, recipe)
    _check_typos(context.args, known)
    return (*context.args, *after), ()


def _cpus(cpus_per_task: int | None, start: Preset, gpus: int, tasks: int) -> int | None:
    if cpus_per_task is not None or tasks < 1:
        return cpus_per_task
    if start.cpus_per_gpu and gpus:
        return max(start.cpus_per_gpu * gpus // tasks, 1)
    return start.cpus_per_task


def _say_if_apart(script: Script) -> None:
    """Say on stderr that a program of several processes may not join them: each would compute everything."""
    from outlay.slurm.slurm_script import python_file

    file = python_file(script.program)
    if file is None or script.num_tasks == 1:
        return
    text = Path(file).read_text(encoding="utf-8", errors="replace")
    if not any(word in text for word in ("join(", "distributed.initialize", "outlay.run(")):
        say(
            f"note: {file} calls neither outlay.join() nor jax.distributed.initialize(): unless something that it "
            f"imports does, each of {script.num_tasks} processes computes all of it by itself",
            err=True,
        )


def _variables(texts: Sequence[str]) -> dict[str, str]:
    wrong = [text for text in texts if "=" not in text]
    if wrong:
        raise LaunchError(f"--env {', '.join(wrong)}: a variable needs a value\n  fix: --env {wrong[0]}=VALUE")
    return dict(text.split("=", 1) for text in texts)


def _check_devices(words: Sequence[str], num_tasks: int) -> None:
    """Raise LaunchError for devices or processes that a job of several tasks would refuse, but days later."""
    options = [word for word in words if word.partition("=")[0] in ("--devices", "--processes")]
    if options and num_tasks > 1:
        raise LaunchError(
            f"in a job of {num_tasks} processes each has the devices that the job gives it, and {', '.join(options)} "
            "would be refused there\n  fix: leave it out, or --nodes 1 --tasks-per-node 1"
        )


def _check_typos(words: Sequence[str], own: Sequence[str]) -> None:
    """Raise LaunchError for options that look misspelt: they go to the recipe, which would refuse them days later."""
    problems: list[str] = []
    for option in (word.partition("=")[0] for word in words if word.startswith("--")):
        close = difflib.get_close_matches(option, own, n=1, cutoff=TYPO)
        if close and option not in own:
            problems.append(f"there is no option {option}: did you mean {close[0]}?")
    if problems:
        raise LaunchError("\n  ".join(problems))
