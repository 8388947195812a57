"""The help of `outlay`: commands in groups, each with a whole sentence; and two examples for each command."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import typer

GROUPS: Mapping[str, Sequence[str]] = {
    "See": ("show", "explain", "profile", "doctor"),
    "Price": ("estimate", "choose", "diff", "calibrate"),
    "Prove": ("verify",),
    "Run": ("run", "watch", "runs", "launch", "slurm"),
    "Files": ("checkpoint", "compiler", "examples", "completion"),
}
"""What commands are for, by the word under which the help lists them; those that are plugged in come last."""

EXAMPLES: Mapping[str, tuple[str, str]] = {
    "": ("outlay run digits --devices 8 --layout fsdp", "outlay explain digits --target h100:1x8"),
    "run": (
        "outlay run digits --devices 8 --layout fsdp",
        "outlay run path/to/file.py:recipe --steps 100 --resume --checkpoint-every 50",
    ),
    "show": (
        "outlay show digits --devices 8 --mesh data=4,model=2 --layout fsdp+tp",
        "outlay show digits --target h100:1x8 --html page.html",
    ),
    "explain": (
        "outlay explain digits --devices 8 --layout fsdp",
        "outlay explain lm --target h100:1x8 --max-memory 60GiB --forbid all-to-all",
    ),
    "estimate": (
        "outlay estimate digits --target h100:1x8 --layout fsdp",
        "outlay estimate lm --target tpu-v5e:4x4 --html page.html",
    ),
    "profile": (
        "outlay profile digits --devices 8",
        "outlay profile digits --devices 8 --html page.html --trace steps.json",
    ),
    "diff": (
        "outlay diff fsdp dp --recipe digits --devices 8",
        "outlay diff old.json new.json --fail-if 'memory>+2%' --fail-if 'all-gather>+0' --markdown",
    ),
    "verify": (
        "outlay verify digits --devices 8 --layout fsdp",
        "outlay verify digits --devices 8 --mode manual --against auto",
    ),
    "choose": (
        "outlay choose digits --target cpu:8",
        "outlay choose lm --target h100:32x8 --html page.html",
    ),
    "calibrate": ("outlay calibrate my_cpu.toml", "outlay estimate digits --target my_cpu.toml:8"),
    "compiler": ("outlay compiler gpu", "outlay compiler tpu"),
    "runs": ("outlay runs", "outlay runs runs/first runs/second --html compared.html"),
    "watch": ("outlay watch runs/digits", "outlay watch runs/digits --port 8400"),
    "completion": ('eval "$(outlay completion bash)"', 'eval "$(outlay completion zsh)"'),
    "doctor": ("outlay doctor", "outlay doctor --message 'RESOURCE_EXHAUSTED: Out of memory'"),
    "launch": (
        "outlay launch -n 2 --devices-per-process 4 -- python train.py",
        "outlay launch -n 4 -- outlay run digits",
    ),
}
"""Two lines for each command; a group of commands, such as `outlay slurm`, has its own."""


def examples_of(command: str) -> str:
    """Return the end of a command's help, as typer takes it: its examples."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in EXAMPLES[command])


def write_groups(commands: Mapping[str, Any], context: typer.Context, formatter: Any) -> None:
    """Write the commands of the help, group by group, each with the first sentence of its own help."""
    listed = [name for names in GROUPS.values() for name in names]
    groups = {**GROUPS, "Files": [*GROUPS["Files"], *(name for name in commands if name not in listed)]}
    for title, names in groups.items():
        if rows := [(styled(name, fg="cyan"), first_sentence(commands[name])) for name in names if name in commands]:
            with formatter.section(styled(title, bold=True)):
                formatter.write_dl(rows)


def first_sentence(command: Any) -> str:
    """Return what a command does, in one whole sentence."""
    text = " ".join((command.help or "").split("\n\n")[0].split())
    return text.partition("; ")[0].partition(". ")[0].rstrip(".") + "."


def styled(text: str, **style: Any) -> str:
    """Return a text in colour; `NO_COLOR` keeps it plain, and so does typer where no terminal shows it."""
    return text if os.environ.get("NO_COLOR") else typer.style(text, **style)
