"""Find what caused an instruction: the part of the step, the module, and the line of the user's source.

There are three sources: the scopes in an instruction's op name, the source lines that the compiler kept, and, where it
kept none, those of the nearest instructions that it is connected with.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outlay.analysis.attribution.program_facts import Phase
from outlay.analysis.hlo.attributes import Frames
from outlay.analysis.hlo.hlo_module import Computation, HloModule, Instruction, SourceLine
from outlay.core.source_owner import is_installed, is_of_package, is_standard, part_of_outlay
from outlay.graph.subgraph import exchange_rows
from outlay.models.attention.kernel_rules import SCOPE
from outlay.program.compiler_options import MICROBATCHES


def _file_of(function: Callable[..., Any]) -> str | None:
    """Return the path within Outlay of the file that defines a function."""
    return part_of_outlay(function.__code__.co_filename)


# These parts of Outlay are machinery; its models, recipes and applications count as programs, like a user's.
MACHINERY = (
    *("analysis", "arrays", "cli", "core", "devices", "graph", "layout", "program", "report", "search"),
    "train",
)
# What a program calls: its own line is named, not one of attention itself.
_CALLED = ("models/attention/",)
# Rows are exchanged because a layout splits them, not because a line of the user asks for it: Outlay's own line is
# named.
_EXCHANGE = _file_of(exchange_rows)
# Callers of these are scripts that run a program, not the program itself.
DRIVERS = ("program/program.py", "analysis/", "report/", "cli/", "search/")
_SUMS_OF_GRADIENTS = ("program/manual_gradients.py", "program/summed_once.py")

_TRANSFORM = re.compile(r"(\w+)\((.*)\)", re.DOTALL)
_SCOPED = frozenset(("jvp", "transpose", "vmap", "remat", "checkpoint", "custom_jvp", "custom_vjp", "linearize"))
"""Transformations that enclose the scopes they were applied to, as in `transpose(jvp(MLP))`."""

_JAX_SCOPES = frozenset(
    {
        *("while", "body", "cond", "closed_call", "core_call", "core_closed_call", "checkpoint", "remat"),
        *("remat2", "rematted_computation", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"),
        *("custom_lin", "shard_map", "shmap_body", "pjit", "eval_jaxpr", "scan", "run_state"),
        *("optimization_barrier", "cond_body", MICROBATCHES),
    }
)
"""Scopes that JAX, or the step itself, adds to the path."""

OPTIMIZER = "optimizer"
"""The scope that `outlay.train_step` opens around the optimizer's update."""

# Many instructions have the same name or line.
_MANY = 4096
# Instructions that are farther away belong to other lines.
_MAX_VISITS = 40
_REDUCING = ("all-reduce", "reduce-scatter")


@dataclass(frozen=True)
class Origin:
    """The origin of an instruction.

    Attributes:
        phase: the part of the step.
        module: the model's part, dotted; empty if nothing names it.
        source: the user's line, its file relative to the working directory if it is below that; None if unknown.
        primitive: the operation of JAX; empty if unknown.
    """

    phase: Phase
    module: str
    source: SourceLine | None
    primitive: str

    def in_words(self, what: str) -> str:
        """Name what an operation makes or is, with its module and its part of the step."""
        return (
            what + (f" in {self.module}" if self.module else "") + (f", {self.phase}" if self.phase != "other" else "")
        )


def origin_of(module: HloModule, computation: str, one: Instruction) -> Origin:
    """Return the origin of an instruction: from its own metadata, or else from its nearest relatives."""
    op_name, frames = metadata_of(module, computation, one)
    name, line = read_op_name(op_name), user_line(frames)
    if name is None or line is None:
        # It carries the name of an argument, or a line of a library: its neighbours know more.
        near_name, near_frames = _metadata_nearby(module, computation, one)
        name = name or read_op_name(near_name)
        frames = frames if line else near_frames
    name = name or OpName("", (), "other")
    return Origin(_phase(name, frames), _module(name, frames), user_line(frames), name.primitive)


def user_line(frames: tuple[SourceLine, ...]) -> SourceLine | None:
    """Return the innermost line of the user's own source.

    Lines of installed packages and of Outlay's machinery are skipped; those of its models and recipes count.

    Args:
        frames: the source lines that led to an operation, innermost first.
    """
    for frame in _program_frames(frames):
        if _is_users_frame(frame):
            return SourceLine(_short(frame.file), frame.line, frame.function)
    return None


def _is_users_frame(frame: SourceLine) -> bool:
    if is_users(frame.file):
        return True
    return frame.function.partition(".")[0] == exchange_rows.__name__ and part_of_outlay(frame.file) == _EXCHANGE


@functools.lru_cache(maxsize=_MANY)
def is_users(file: str) -> bool:
    """Return whether a file holds a program rather than a library."""
    part = part_of_outlay(file)
    if part is not None:
        folder, is_in_one, _ = part.partition("/")
        return bool(is_in_one) and folder not in MACHINERY and not part.startswith(_CALLED)
    return not (is_installed(file) or is_standard(file))


@functools.lru_cache(maxsize=_MANY)
def is_driver(file: str) -> bool:
    """Return whether a file is Outlay's and has programs compiled: what calls it is not part of any program."""
    return (part_of_outlay(file) or "").startswith(DRIVERS)


def _program_frames(frames: tuple[SourceLine, ...]) -> Iterator[SourceLine]:
    """Yield the frames up to the one that had the program compiled."""
    for frame in frames:
        if is_driver(frame.file):
            return
        yield frame


def _short(file: str) -> str:
    try:
        here = os.getcwd()
    except OSError:  # the working folder has been removed
        return file
    return _relative(file, here)


@functools.lru_cache(maxsize=_MANY)
def _relative(file: str, folder: str) -> str:
    path = Path(file)
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else file


def _phase(name: OpName, frames: tuple[SourceLine, ...]) -> Phase:
    if name.phase != "other":
        return name.phase
    files = [frame.file for frame in _program_frames(frames)]
    if any(part_of_outlay(file) in _SUMS_OF_GRADIENTS for file in files):  # sums of gradients after they were taken
        return "backward"
    return "optimizer" if any(is_of_package(file, "optax") for file in files) else "other"


def _module(name: OpName, frames: tuple[SourceLine, ...]) -> str:
    """Return the module: from scopes, else from the classes whose calls led here, else from the innermost function."""
    scopes = [scope for scope in name.scopes if scope != OPTIMIZER]
    if scopes:
        return ".".join(scopes)
    functions = [frame.function for frame in _program_frames(frames) if _is_users_frame(frame) and frame.function]
    classes = [function.removesuffix(".__call__") for function in functions if function.endswith(".__call__")]
    if classes:
        return ".".join(reversed([part.replace(".<locals>", "") for part in dict.fromkeys(classes)]))
    return functions[0].replace(".<locals>", "") if functions and functions[0] != "<module>" else ""


@dataclass(frozen=True)
class OpName:
    """A parsed op name.

    Attributes:
        primitive: the operation, such as `dot_general`.
        scopes: the names that the model's code gave, outermost first: Flax modules, `jax.named_scope`.
        phase: which part of a step the operation belongs to.
    """

    primitive: str
    scopes: tuple[str, ...]
    phase: Phase


@functools.lru_cache(maxsize=_MANY)
def read_op_name(text: str) -> OpName | None:
    """Parse an op name; None for other texts, such as the name of an argument.

    >>> read_op_name("jit(step)/transpose(jvp(MLP))/Dense_0/while/body/dot_general")
    OpName(primitive='dot_general', scopes=('MLP', 'Dense_0'), phase='backward')
    >>> read_op_name("state.params['w']") is None
    True
    """
    if "/" not in text:
        return None
    *path, primitive = _unjoined(_split(text.partition(";")[0], "/"))
    scopes: list[str] = []
    transforms: set[str] = set()
    for part in path:
        _read_part(part, scopes, transforms)
    return OpName(primitive, tuple(scopes), _phase_of_scopes(scopes, transforms))


def _unjoined(path: list[str]) -> list[str]:
    """Take one of the names, `(a:b/c)`, that the compiler joins with its operations: the first that tells its phase."""
    *start, last = path
    if not (last.startswith("(") and last.endswith(")")):
        return path
    members = _split(last[1:-1], ":")
    return [*start, *_split(next((member for member in members if "(" in member), members[0]), "/")]


def _split(text: str, separator: str) -> list[str]:
    """Split at separators outside of parentheses."""
    if "(" not in text and ")" not in text:
        return text.split(separator)
    parts, depth = [""], 0
    for sign in text:
        depth += (sign == "(") - (sign == ")")
        if sign == separator and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    return parts


def _read_part(part: str, scopes: list[str], transforms: set[str]) -> None:
    transform = _TRANSFORM.fullmatch(part)
    if transform is None:
        if part and part not in _JAX_SCOPES and not part.startswith(("branch_", SCOPE)) and "->" not in part:
            scopes.append(part)
        return
    name, inside = transform[1], transform[2]
    transforms.add(name)
    if name in _SCOPED:
        for inner in _split(inside, "/"):
            _read_part(inner, scopes, transforms)


def _phase_of_scopes(scopes: list[str], transforms: set[str]) -> Phase:
    if "transpose" in transforms:
        return "backward"
    if "jvp" in transforms:
        return "forward"
    return "optimizer" if OPTIMIZER in scopes else "other"


def metadata_of(module: HloModule, computation: str, instruction: Instruction) -> tuple[str, Frames]:
    """Return op name and source lines, innermost first: an instruction's own, or else its nearest relative's.

    For a reduction the relative is what made its operand; for everything else what takes the result, since a gather
    exists for the sake of its consumer.

    Args:
        module: the program.
        computation: the name of the instruction's computation.
        instruction: such as a collective.

    Returns:
        Both empty if no relative has them either.
    """
    if instruction.op_name and instruction.frames:
        return instruction.op_name, instruction.frames
    name, frames = _metadata_nearby(module, computation, instruction)
    return instruction.op_name or name, frames


def _metadata_nearby(module: HloModule, computation: str, instruction: Instruction) -> tuple[str, Frames]:
    """Return op name and source lines of the nearest relative that has lines; if none has, the nearest name."""
    nearest_name = ""
    # A fusion may carry the metadata of what it holds.
    callers = (caller for _, caller in module.callers.get(computation, ()) if "fusion" in caller.opcode)
    for one in itertools.chain(_relatives(module.computations[computation], instruction), callers):
        if one.frames:
            return one.op_name, one.frames
        nearest_name = nearest_name or one.op_name
    return nearest_name, ()


def _relatives(computation: Computation, instruction: Instruction) -> Iterable[Instruction]:
    if instruction.opcode.startswith(_REDUCING):
        yield from _producers(computation, instruction)
        yield from _consumers(computation, instruction)
    else:
        yield from _consumers(computation, instruction)
        yield from _producers(computation, instruction)


def _producers(computation: Computation, instruction: Instruction) -> Iterable[Instruction]:
    """Yield what the operands were made by, nearest first."""
    known = computation.instructions
    yield from _nearest_first(instruction, lambda one: [known[name] for name in one.operands if name in known])


def _consumers(computation: Computation, instruction: Instruction) -> Iterable[Instruction]:
    """Yield what takes the result, nearest first."""
    yield from _nearest_first(instruction, lambda one: computation.users.get(one.name, ()))


def _nearest_first(
    start: Instruction, following: Callable[[Instruction], Iterable[Instruction]]
) -> Iterable[Instruction]:
    pending, seen = deque([start]), {start.name}
    for _ in range(_MAX_VISITS):
        if not pending:
            return
        for one in following(pending.popleft()):
            if one.name not in seen:
                seen.add(one.name)
                pending.append(one)
                yield one
