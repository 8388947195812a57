"""Commands that people type first and that there are not, with the line that does it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from outlay.recipes.find import RECIPES, ending_of, recipe_named

_LISTED = (
    f"outlay run RECIPE, one of {', '.join(RECIPES)}; `outlay completion bash` completes recipes, layouts and targets"
)

COMMANDS: Mapping[str, str] = {
    "train": "outlay run {rest}",
    "fit": "outlay run {rest}",
    "simulate": "outlay run {rest} --devices 8",
    "start": "outlay run {rest}",
    "plan": "outlay show {rest}",
    "print": "outlay show {rest}",
    "visualize": "outlay show {rest}",
    "explore": "outlay show {rest} --explore --html page.html",
    "inspect": "outlay show {rest}",
    "memory": "outlay explain {rest}",
    "cost": "outlay estimate {rest}",
    "price": "outlay estimate {rest}",
    "time": "outlay estimate {rest}",
    "compile": "outlay explain {rest}",
    "dryrun": "outlay explain {rest}",
    "dry-run": "outlay explain {rest}",
    "tune": "outlay choose {rest} --target h100:1x8",
    "search": "outlay choose {rest} --target h100:1x8",
    "test": "outlay verify {rest}",
    "check": "outlay verify {rest}",
    "compare": "outlay diff A B --recipe RECIPE, or outlay runs for runs",
    "bench": "outlay profile {rest}",
    "benchmark": "outlay profile {rest}",
    "resume": "outlay run {rest} --resume",
    "sbatch": "outlay slurm run {rest}",
    "srun": "outlay slurm run {rest}",
    "mpirun": "outlay launch -n 2 -- python train.py",
    "torchrun": "outlay launch -n 2 -- python train.py",
    "list": _LISTED,
    "ls": _LISTED,
    "recipes": _LISTED,
    "layouts": _LISTED,
    "targets": _LISTED,
    "tensorboard": "outlay run RECIPE --log tensorboard, then tensorboard --logdir runs",
    "install": "outlay compiler gpu",
    "env": "outlay doctor",
    "info": "outlay doctor",
    "version": "outlay --version",
    "help": "outlay --help",
}
"""What to type instead of a command; `{rest}` is what was typed after it."""


def instead_of(words: Sequence[str]) -> str | None:
    """Return the command to write if the first word is not one; None without a suggestion.

    >>> instead_of(["train", "digits", "--devices", "8"]), instead_of(["digits"])
    ('outlay run digits --devices 8', 'outlay run digits')
    >>> instead_of(["check"]), instead_of(["shwo"])
    ('outlay verify RECIPE', None)
    """
    first, rest = words[0], " ".join(words[1:])
    if first in COMMANDS:
        return COMMANDS[first].format(rest=rest or "RECIPE")
    if first.partition(":")[0].endswith(".py") or ending_of(first) or recipe_named(first):
        return f"outlay run {first} {rest}".rstrip()
    return None
