"""Who asked for an instruction: the part of the step, the module, and the line of the user's source."""

from __future__ import annotations

import os
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from outlay.analysis.attribution.op_name import OPTIMIZER, OpName, read_op_name
from outlay.analysis.attribution.program_facts import Phase
from outlay.analysis.hlo.hlo_module import HloModule, Instruction, SourceLine
from outlay.analysis.hlo.origin import origin_of as noted_origin

_INSTALLED = re.compile(
    r"[/\\](site|dist)-packages[/\\]|[/\\]lib[/\\]python3[^/\\]*[/\\]|^<frozen|[/\\]outlay[/\\]core[/\\]"
)
_STANDARD_LIBRARY = tuple({sysconfig.get_paths()[key] + os.sep for key in ("stdlib", "platstdlib")})
# Of Outlay itself this is machinery; models, recipes and applications are programs like a user's.
_OUTLAY = re.compile(r"[/\\]outlay[/\\](\w+)[/\\]")
_MACHINERY = (
    *("analysis", "arrays", "cli", "core", "devices", "graph", "layout", "program", "report", "search"),
    "train",
)
_PROGRAMS = frozenset(path.name for path in Path(__file__).parents[2].iterdir()).difference(_MACHINERY)
# Rows are exchanged because a layout splits them: no line of the user's asks for it, so it is the one that does it.
_EXCHANGE = re.compile(r"[/\\]outlay[/\\]graph[/\\]exchange_rows\.py$")
# What calls these is the script that drives a program, not the program.
_DRIVER = re.compile(r"[/\\]outlay[/\\](program[/\\]program|analysis[/\\]|report[/\\]|cli[/\\]|search[/\\])")
_BY_HAND = re.compile(r"[/\\]outlay[/\\]program[/\\]by_hand\.py$")
_OPTAX = re.compile(r"[/\\]optax[/\\]")


@dataclass(frozen=True)
class Origin:
    """Where an instruction comes from.

    Attributes:
        phase: the part of the step.
        module: the model's part, dotted; empty where nothing names it.
        source: the user's line, its file relative to the working directory where it lies below; None if unknown.
        primitive: the operation of JAX; empty where unknown.
    """

    phase: Phase
    module: str
    source: SourceLine | None
    primitive: str


def origin_of(module: HloModule, computation: str, one: Instruction) -> Origin:
    """Where an instruction comes from: what it says itself, or else what its nearest relatives say.

    Args:
        module: the program.
        computation: the name of the computation that it stands in.
        one: the instruction.
    """
    op_name, frames = noted_origin(module, computation, one)
    name, line = read_op_name(op_name), user_line(frames)
    if name is None or line is None:
        # It bears the name of an argument, or the line of a library: what is near knows more.
        near_name, near_frames = noted_origin(module, computation, replace(one, op_name="", frames=()))
        name = name or read_op_name(near_name)
        frames = frames if line else near_frames
    name = name or OpName("", (), "other")
    return Origin(_phase(name, frames), _module(name, frames), user_line(frames), name.primitive)


def user_line(frames: tuple[SourceLine, ...]) -> SourceLine | None:
    """The innermost line of the user's own source, as people look for it.

    Lines of installed packages and of Outlay's machinery are passed over; those of its models and recipes count.

    Args:
        frames: the source lines that led to an operation, innermost first.
    """
    for frame in _program_frames(frames):
        if is_users(frame.file):
            return SourceLine(_short(frame.file), frame.line, frame.function)
    return None


def is_users(file: str) -> bool:
    """Whether a file holds somebody's program rather than a library."""
    part = _OUTLAY.search(file)
    if _EXCHANGE.search(file):
        return True
    if part and part[1] in _MACHINERY:
        return False
    if part and part[1] in _PROGRAMS:
        return True
    return not (_INSTALLED.search(file) or file.startswith(_STANDARD_LIBRARY))


def _program_frames(frames: tuple[SourceLine, ...]) -> Iterator[SourceLine]:
    """Up to what had the program compiled."""
    for frame in frames:
        if _DRIVER.search(frame.file):
            return
        yield frame


def _short(file: str) -> str:
    path = Path(file)
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else file


def _phase(name: OpName, frames: tuple[SourceLine, ...]) -> Phase:
    if name.phase != "other":
        return name.phase
    files = [frame.file for frame in _program_frames(frames)]
    if any(_BY_HAND.search(file) for file in files):  # gradients summed after they were taken
        return "backward"
    return "optimizer" if any(_OPTAX.search(file) for file in files) else "other"


def _module(name: OpName, frames: tuple[SourceLine, ...]) -> str:
    """By scopes; else by the classes whose calls led here; else by the innermost function."""
    scopes = [scope for scope in name.scopes if scope != OPTIMIZER]
    if scopes:
        return ".".join(scopes)
    functions = [frame.function for frame in _program_frames(frames) if is_users(frame.file) and frame.function]
    classes = [function.removesuffix(".__call__") for function in functions if function.endswith(".__call__")]
    if classes:
        return ".".join(reversed([part.replace(".<locals>", "") for part in dict.fromkeys(classes)]))
    return functions[0].replace(".<locals>", "") if functions and functions[0] != "<module>" else ""
