"""The names by which a rule refers to values in the source: functions and modules, lines, and named scopes."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from outlay.core.jax_source import Instruction, calls_to, is_traced, line_of, scopes_of
from outlay.core.paths import flatten_paths, join_parts, split_path
from outlay.core.source_owner import is_installed, is_of_package, is_standard, part_of_outlay
from outlay.core.suggest import did_you_mean
from outlay.layout.rule import Rule

_LINE = re.compile(r"@(.+\.\w+):(\d+)")
# Of Outlay itself this is machinery; models, recipes and applications are programs like a user's.
_MACHINERY = tuple(
    f"{folder}/"
    for folder in (
        *("analysis", "arrays", "cli", "core", "datasets", "devices", "graph", "jobs", "layout", "program", "report"),
        *("search", "train"),
    )
)
_NEAREST = 6
"""Lines that are named where a rule's line makes nothing."""


def is_readable(file: str) -> bool:
    """Return whether a file holds somebody's program rather than a library."""
    return not (_is_passed_over(file) or is_installed(file))


@functools.lru_cache(maxsize=65536)
def _is_passed_over(file: str) -> bool:
    """Return whether a file is Python's, JAX's or Outlay's machinery, whose functions no rule names."""
    is_machinery = (part_of_outlay(file) or "").startswith(_MACHINERY)
    return is_machinery or is_of_package(file, "jax") or is_standard(file)


@dataclass(frozen=True)
class Line:
    """A line of a file; the file is given by the end of its path."""

    file: str
    number: int

    def turn(self, eqn: Any) -> tuple[int, tuple[Instruction, ...]] | None:
        """Return the calls that led to an operation, and the line's position among them; None if it is not there."""
        calls = calls_to(eqn)
        for index, step in enumerate(calls):
            code = step[0]
            if code.co_firstlineno <= self.number == line_of(step) and self.is_in(code.co_filename):
                return index, calls
        return None

    def is_same(self, made: Any, taken: Any) -> bool:
        """Return whether a line takes a value in the turn that made it: its instructions only go forward."""
        (before, there), (position, calls) = made, taken
        if position != before or there[:before] != calls[:before]:
            return False
        return [offset for _, offset in there[before:]] < [offset for _, offset in calls[before:]]

    def is_in(self, file: str) -> bool:
        """Return whether it is a line of this file."""
        return file == self.file or Path(file).as_posix().endswith("/" + self.file.removeprefix("./"))


class Scope:
    """The scopes of `jax.named_scope` that a rule names."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._turn = functools.cache(self._turn_in)

    def turn(self, eqn: Any) -> tuple[str, ...] | None:
        """Return the outermost matching scope around an operation, with the scopes around it; None without one."""
        return self._turn(scopes_of(eqn))

    def is_same(self, made: Any, taken: Any) -> bool:
        """Return whether a value is taken in the scope in which it was made."""
        return made == taken

    def path(self, turn: tuple[str, ...]) -> str:
        """Return the path of a value that leaves a scope: the shortest of its names that the rule matches."""
        return next(name for name in _names_of_scope(turn) if self._rule.matches(name, "intermediate"))

    def _turn_in(self, scopes: tuple[str, ...]) -> tuple[str, ...] | None:
        insides = (scopes[:depth] for depth in range(1, len(scopes) + 1))
        return next(
            (s for s in insides if any(self._rule.matches(name, "intermediate") for name in _names_of_scope(s))), None
        )


def _names_of_scope(scopes: tuple[str, ...]) -> list[str]:
    """Return the names of a scope: its own, and with more and more of the scopes around it."""
    return ["@" + join_parts(scopes[first:]) for first in reversed(range(len(scopes)))]


def line_in(pattern: str) -> Line | None:
    """Return the line that a pattern names; None if it names a function or a module.

    >>> line_in("@nets/model.py:120"), line_in("@Block.mlp")
    (Line(file='nets/model.py', number=120), None)
    """
    match = _LINE.fullmatch(pattern)
    return Line(match[1], int(match[2])) if match else None


class SourceNames:
    """The names of what functions return, as rules write them.

    Args:
        rules: those that name values by their source.

    Attributes:
        returned: the numbers of the rules that match what a function or module returned.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules
        self._names: dict[str, None] = {}
        self._codes: dict[CodeType, None] = {}
        self.returned: set[int] = set()

    def add_scopes(self, eqn: Any) -> None:
        """Note the scopes around an operation, to suggest them for a name that matches nothing."""
        if scopes := scopes_of(eqn):
            self._names[_names_of_scope(scopes)[0]] = None

    def of_returned(self, frame: FrameType, value: Any) -> dict[str, Any]:
        """Return the arrays of a returned value that a rule matches, by their paths in the plan."""
        file = frame.f_code.co_filename
        if _is_passed_over(file):
            return {}
        arrays = _arrays(value)
        if not arrays:
            return {}
        names = names_of_frame(frame)
        if is_readable(file):
            self._codes[frame.f_code] = None
        if is_readable(file) or frame.f_code.co_name == "__call__":
            self._names.update(dict.fromkeys(_joined(name, path) for name in names for path, _ in arrays))
        returned = {}
        for path, array in arrays:
            for rank, rule in enumerate(self._rules):
                full = next((one for name in names if rule.matches(one := _joined(name, path), "intermediate")), None)
                if full is not None:
                    returned[full] = array
                    self.returned.add(rank)
                    break
        return returned

    def path_and_rank(self, path: str) -> tuple[str, int]:
        """Return a path, and the number of the first rule that matches it."""
        return path, next(rank for rank, rule in enumerate(self._rules) if rule.matches(path, "intermediate"))

    def why_unused(self, rule: Rule) -> tuple[str, str]:
        """Explain what a rule that matches nothing looks for, and what is nearest to it."""
        line = line_in(rule.pattern)
        otherwise = "\nor delete the rule, or allow it to match nothing with outlay.Rule(..., optional=True)"
        if line is None:
            what = (
                "no function or module of this name returns an array in this step, nor is a jax.named_scope called so"
            )
            return what, did_you_mean(rule.pattern, self._names) + otherwise
        return "this line makes no floating-point array that something else takes", self._near(line) + otherwise

    def _near(self, line: Line) -> str:
        files = dict.fromkeys(code.co_filename for code in self._codes)
        here = [code for code in self._codes if line.is_in(code.co_filename)]
        if not here:
            names = [f"@{Path(file).name}:{line.number}" for file in files]
            return f"no function of such a file returns an array; {did_you_mean(f'@{line.file}:{line.number}', names)}"
        spans = sorted({(code.co_firstlineno, code.co_name) for code in here}, key=lambda s: abs(s[0] - line.number))
        starts = ", ".join(f"{name} begins on line {first}" for first, name in sorted(spans[:_NEAREST]))
        return f"functions of {line.file} that make arrays: {starts}"


def _arrays(value: Any) -> list[tuple[str, Any]]:
    """Return the traced arrays that a function returns, with their paths in it."""
    if is_traced(value):
        return [("", value)]
    if not isinstance(value, tuple | list | dict):
        return []
    try:
        return [(path, leaf) for path, leaf in flatten_paths(value)[0] if is_traced(leaf)]
    except Exception:  # a tree that cannot be flattened is nobody's activations
        return []


def _joined(name: str, path: str) -> str:
    return f"@{name}" + (f".{path}" if path else "")


def names_of_frame(frame: FrameType) -> list[str]:
    """Return the names of a function: its own, and the attribute that holds its module."""
    code = frame.f_code
    name = code.co_qualname.rpartition("<locals>.")[2]
    owner = _owner(frame)
    if owner is None:
        return [join_parts((name,)) if "." not in name else name]
    names = [type(owner).__name__ if code.co_name == "__call__" else f"{type(owner).__name__}.{code.co_name}"]
    if code.co_name == "__call__" and (attribute := _attribute(frame, owner)):
        names.insert(0, attribute)
    return names


def _owner(frame: FrameType) -> Any:
    """Return the object whose method a frame runs."""
    code = frame.f_code
    if "." not in code.co_qualname.rpartition("<locals>.")[2] or not code.co_argcount:
        return None
    return frame.f_locals.get(code.co_varnames[0])


def _attribute(frame: FrameType, owner: Any) -> str:
    """Return `Block.mlp` for a module that the Block calling it, directly or not, holds as its `mlp`."""
    # Not the nearest caller alone: libraries call modules through functions of their own.
    outer = frame.f_back
    while outer is not None:
        holder = _owner(outer)
        if holder is not None and holder is not owner and (name := _held_as(holder, owner)):
            return f"{type(holder).__name__}.{name}"
        outer = outer.f_back
    return ""


def _held_as(holder: Any, owner: Any) -> str:
    for name, value in getattr(holder, "__dict__", {}).items():
        if value is owner:
            return name
        if isinstance(value, Sequence) and not isinstance(value, str):
            number = next((number for number, one in enumerate(value) if one is owner), None)
            if number is not None:
                return f"{name}.{number}"
        if isinstance(value, Mapping):
            key = next((key for key, one in value.items() if one is owner), None)
            if key is not None:
                return f"{name}.{'.'.join(split_path(str(key)))}"
    linen = sys.modules.get("flax.linen")  # of no other class: a property of somebody's may do anything
    is_child = linen is not None and isinstance(owner, linen.Module) and owner.parent is holder
    return owner.name or "" if is_child else ""
