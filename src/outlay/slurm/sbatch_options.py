"""Options of `sbatch` that a batch script passes on as they are: `--mail-type=END`, `-C a100`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence

from outlay.core.error_types import LaunchError

_LONG = dict(
    **{"N": "nodes", "n": "ntasks", "c": "cpus-per-task", "G": "gpus", "J": "job-name", "o": "output", "e": "error"},
    **{"C": "constraint", "p": "partition", "t": "time", "A": "account", "q": "qos", "a": "array", "d": "dependency"},
)
_COUNTS = {
    "nodes": "--nodes N",
    "ntasks": "--tasks-per-node T and --nodes N",
    "ntasks-per-node": "--tasks-per-node T",
    "cpus-per-task": "--cpus-per-task C",
    "gpus-per-task": "--gpus-per-node G and --tasks-per-node T",
}
"""The options that the rest of a script is computed from, and those of Outlay that set them."""
GPUS = frozenset({"gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task"})
"""Options that ask for GPUs, as `--gres` does."""


def read_sbatch_options(texts: Iterable[str]) -> tuple[str, ...]:
    """Read options of `sbatch`, one or several in each text, as the lines of a script have them.

    Args:
        texts: what a user gives; the two dashes of a first one may be missing.

    Raises:
        LaunchError: a text is no option, or sets what the rest of the script is computed from; all are listed.

    >>> read_sbatch_options(["--mem 64G --exclusive", "-C a100", "comment='two words'"])
    ('--mem=64G', '--exclusive', '--constraint=a100', '--comment="two words"')
    """
    options: list[str] = []
    problems: list[str] = []
    for text in texts:
        try:
            options += [_written(*each) for each in _in_text(text)]
        except ValueError as error:
            problems.append(f"--sbatch {text!r}: {error}\n    fix: --sbatch=--mem=64G, with an option of sbatch")
    problems += [
        f"--sbatch --{name}: the processes of the job are computed from it\n    fix: {_COUNTS[name]}, without --sbatch"
        for name in sorted(names(options) & _COUNTS.keys())
    ]
    if problems:
        raise LaunchError("\n  ".join(["sbatch cannot be given these:", *problems]))
    return tuple(options)


def names(options: Sequence[str]) -> frozenset[str]:
    """Return the names of options, without their dashes.

    >>> names(["--mem=64G"])
    frozenset({'mem'})
    """
    return frozenset(option.removeprefix("--").partition("=")[0] for option in options)


def _in_text(text: str) -> list[tuple[str, str | None]]:
    """Return each option of a text, with its value; `ValueError` says why it is none."""
    if re.search(r"[\n\r]", text):
        raise ValueError("it has more than one line")
    words = shlex.split(text)
    if not words:
        raise ValueError("it is empty")
    if not words[0].startswith("-"):
        words[0] = f"--{words[0]}"
    options: list[tuple[str, str | None]] = []
    for word in words:
        if long := re.fullmatch(r"--([a-z][a-z0-9-]*)(?:=(.*))?", word):
            options.append((long[1], long[2]))
        elif short := re.fullmatch(r"-([A-Za-z])=?(.*)", word):
            options.append((_LONG.get(short[1], f"-{short[1]}"), short[2] or None))
        elif not word.startswith("-") and options and options[-1][1] is None:
            options[-1] = options[-1][0], word
        else:
            raise ValueError(f"{word!r} is no option")
    return options


def _written(name: str, value: str | None) -> str:
    is_short = name.startswith("-")  # one that only sbatch knows
    option = name if is_short else f"--{name}"
    if value is None:
        return option
    if '"' in value:
        raise ValueError("its value has a double quote, which a line of a batch script cannot have")
    value = f'"{value}"' if re.search(r"[\s'#]", value) else value
    return f"{option} {value}" if is_short else f"{option}={value}"
