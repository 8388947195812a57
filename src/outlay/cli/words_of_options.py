"""Fixes of errors in the words of the command line: the same error in Python names a function's argument."""

from __future__ import annotations

import re
from collections.abc import Callable

_AXES = r"((?:\w+=-?\d+(?:, )?)+)"

_EDITS: tuple[tuple[str, Callable[[re.Match[str]], str]], ...] = (
    (r"outlay\.simulate\((\d+)\)(?: before anything else uses JAX)?", lambda match: f"--devices {match[1]}"),
    (
        rf"outlay\.mesh\({_AXES}devices=jax\.devices\(\)\[:(\d+)\]\)",
        lambda match: f"--devices {match[2]} --mesh {_text_of(match[1])}",
    ),
    (rf"outlay\.mesh\({_AXES}\)", lambda match: f"--mesh {_text_of(match[1])}"),
    (r"\b(steps|devices|processes|stride|patience)=(\d+)\b", lambda match: f"--{match[1]} {match[2]}"),
    (r"\b(mode|against|target|layout)=[\"']([^\"']+)[\"']", lambda match: f"--{match[1]} {match[2]}"),
)
"""What a fix names in Python, and the options for it."""


def in_options(message: str) -> str:
    r"""Return a message whose fixes name options where they name the arguments of Python's functions.

    Fixes of files, such as a rule or a line of a model, stay what is written there.

    >>> print(in_options("data=4, but there is 1 device\n  fix: outlay.mesh(data=1)\n  or outlay.simulate(4)"))
    data=4, but there is 1 device
      fix: --devices 4
      or --mesh data=1
    """
    lines, fixes = message.split("\n"), []
    for number, line in enumerate(lines):
        if line.lstrip().startswith("fix: "):
            fixes = [number]
        elif fixes and fixes[-1] == number - 1 and line.lstrip().startswith("or "):
            fixes.append(number)
        else:
            continue
        for pattern, edit in _EDITS:
            line = re.sub(pattern, edit, line)
        lines[number] = line
    return "\n".join(_simulating_first(lines, fixes))


def _text_of(axes: str) -> str:
    return axes.rstrip(", ").replace(", ", ",")


def _simulating_first(lines: list[str], fixes: list[int]) -> list[str]:
    """Let the last fixes begin with the number of devices: whoever asks for axes on the command line means those."""
    begins = [lines[number].lstrip().partition(" ")[2] for number in fixes]
    first = next((place for place, text in enumerate(begins) if "--devices" in text and "--mesh" not in text), 0)
    if first:
        begins.insert(0, begins.pop(first))
        heads = ["fix: ", *["or "] * (len(begins) - 1)]
        for number, head, text in zip(fixes, heads, begins, strict=True):
            lines[number] = f"  {head}{text}"
    return lines
