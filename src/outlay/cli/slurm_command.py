"""`outlay slurm`: write the batch script that runs a recipe on a SLURM cluster."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from outlay.cli.options import RECIPE_OPTIONS, RecipeArgument, command_group, own_options
from outlay.cli.output import say
from outlay.core.error_types import LaunchError, visible
from outlay.core.suggest import TYPO

slurm = command_group(
    "slurm",
    help="Batch scripts for SLURM clusters.",
    epilog="Your own template ~/.config/outlay/slurm.sh.j2 is used instead of Outlay's, if there is one.",
)


@slurm.command(context_settings=RECIPE_OPTIONS)
def run(
    context: typer.Context,
    recipe: RecipeArgument,
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
            help="one-task, two-nodes, v100 or a100: values for what the options leave open; may be repeated.",
        ),
    ] = None,
    template: Annotated[
        Path | None, typer.Option("--template", metavar="FILE", help="A template of your own for the script.")
    ] = None,
    submit: Annotated[bool, typer.Option("--submit", help="Hand the script to sbatch instead of printing it.")] = False,
) -> None:
    """Print the batch script that runs a recipe on a cluster. All other options go to `outlay run` there."""
    from outlay.jobs.slurm_script import Script, combined, render
    from outlay.jobs.slurm_script import submit as hand_in

    _check_typos(context.args, own_options(context, recipe))
    start = combined(preset or ())
    gpus = start.gpus_per_node if gpus_per_node is None else gpus_per_node
    if gpus is None:
        raise LaunchError(
            "how many GPUs does a node have? No option or preset says so"
            "\n  fix: --gpus-per-node 4, or 0 to compute on the CPUs"
        )
    tasks = (start.tasks_per_node or max(gpus, 1)) if tasks_per_node is None else tasks_per_node
    if cpus_per_task is None and start.cpus_per_gpu and tasks > 0:
        cpus_per_task = max(start.cpus_per_gpu * gpus // tasks, 1)
    script = Script(
        recipe,
        tuple(context.args),
        nodes=(start.nodes or 1) if nodes is None else nodes,
        gpus_per_node=gpus,
        tasks_per_node=tasks,
        cpus_per_task=cpus_per_task,
        partition=start.partition if partition is None else partition,
        time=time,
        account=account,
        constraint=constraint,
        qos=qos,
        modules=tuple(module or ()),
        env=_variables(env or ()),
        requeue=requeue,
    )
    _check_devices(context.args, script.num_tasks)
    text = render(script, template)
    if submit:
        say(hand_in(text))
    else:  # unescaped, for sbatch: only a terminal would obey control characters
        typer.echo(visible(text) if sys.stdout.isatty() else text, nl=False)


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
