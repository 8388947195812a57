"""Compute how often each computation runs in one step, from calls and the trip counts of loops."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from outlay.analysis.hlo.hlo_module import Computation, HloModule, Instruction, once_per_module, total_bytes
from outlay.analysis.hlo.opcodes import CONTROL, NAMES, RESHAPED

_COLLECTIVES = ("all-", "reduce-scatter", "collective-", "ragged-")
_LINK_WEIGHT = 10  # a byte over a link takes about as long as so many bytes in memory
_KNOWN = re.compile(r'"?known_trip_count"?:\{"?n"?:"?(\d{1,15})')


@once_per_module
def runs_per_step(module: HloModule) -> dict[str, tuple[int, bool]]:
    """Return for each computation that the entry reaches how often it runs, and whether that is certain.

    A loop multiplies; a loop without a known trip count counts once. Of the branches of a conditional, the one that
    writes and sends most counts, and the others not at all. Neither is certain. What fusions and reductions apply to
    elements is not followed.
    """
    runs: dict[str, tuple[int, bool]] = defaultdict(lambda: (0, True))
    if module.entry in module.computations:
        runs[module.entry] = (1, True)
    for name in _callers_first(module):
        times, exact = runs[name]
        for callee, factor, certain in _calls(module, module.computations[name]):
            before, before_exact = runs[callee]
            runs[callee] = (before + times * factor, before_exact and exact and certain)
    return dict(runs)


def trip_count(module: HloModule, computation: str, loop: Instruction) -> int | None:
    """Return how often a `while` runs its body; None if the text does not tell."""
    known = _KNOWN.search(loop.attributes.get("backend_config", ""))
    return int(known[1]) if known else _derived_trip_count(module, computation, loop)


def contradicting_trip_counts(module: HloModule, computation: str, loop: Instruction) -> tuple[int, int] | None:
    """Return how often a `while` runs by its compiler's note and by its condition; None unless both tell and differ.

    Args:
        module: the program.
        computation: the name of the loop's computation.
        loop: the `while`.
    """
    known = _KNOWN.search(loop.attributes.get("backend_config", ""))
    derived = _derived_trip_count(module, computation, loop)
    return (int(known[1]), derived) if known and derived is not None and int(known[1]) != derived else None


def _calls(module: HloModule, computation: Computation) -> Iterator[tuple[str, int, bool]]:
    """Yield (computation, times, certain) for what this one runs, each time that it runs."""
    for one in computation.instructions.values():
        if one.opcode == "while":
            trips = trip_count(module, computation.name, one)
            times = 1 if trips is None else trips
            known = trips is not None
            # The condition is asked once more than it holds.
            calls = [(one.called("body"), times, known), (one.called("condition"), times + 1, known)]
        elif one.opcode == "conditional":
            # Both sides counted once made a branch look like a loop (decision 27).
            costliest = max(one.calls, key=lambda name: _written(module, name), default="")
            calls = [(name, int(name == costliest), False) for name in one.calls]
        elif one.opcode in ("call", "async-start"):
            calls = [(name, 1, True) for name in one.calls]
        else:
            continue
        yield from (call for call in calls if call[0] in module.computations)


def _written(module: HloModule, name: str) -> int:
    """Return the bytes that a computation and its callees write, links weighted: a measure to compare branches."""
    pending, seen, written = [name], set(), 0
    while pending:
        computation = module.computations.get(pending.pop())
        if computation is None or computation.name in seen:
            continue
        seen.add(computation.name)
        for one in computation.instructions.values():
            if one.opcode not in NAMES and one.opcode != "constant":
                written += total_bytes(one.shapes) * (_LINK_WEIGHT if one.opcode.startswith(_COLLECTIVES) else 1)
            if one.opcode in CONTROL or one.opcode == "async-start":
                pending += one.calls
    return written


def _callers_first(module: HloModule) -> list[str]:
    """Return the computations that the entry reaches, each after all its callers."""
    finished: list[str] = []
    seen = {module.entry}
    pending: list[tuple[str, Iterator[str]]] = []
    if module.entry in module.computations:
        pending.append((module.entry, _callees(module, module.entry)))
    while pending:
        name, callees = pending[-1]
        callee = next((one for one in callees if one not in seen), None)
        if callee is None:
            finished.append(name)
            pending.pop()
        else:
            seen.add(callee)
            pending.append((callee, _callees(module, callee)))
    return finished[::-1]


def _callees(module: HloModule, name: str) -> Iterator[str]:
    return (callee for callee, _, _ in _calls(module, module.computations[name]))


# Derive the trip count of a loop from its condition, for compilers that do not record it.

_MAX_DEPTH = 50


@dataclass(frozen=True)
class _Counter:
    """An element of a loop's state, plus a number."""

    index: int
    offset: int


_Value = int | _Counter | None


def _derived_trip_count(module: HloModule, computation: str, loop: Instruction) -> int | None:
    """Return how often the body runs if the condition compares a counter with a constant; else None.

    Args:
        module: the program.
        computation: the name of the loop's computation.
        loop: a `while`.
    """
    body = module.called(loop, "body")
    bound = _condition(module, module.called(loop, "condition"))
    if body is None or bound is None:
        return None
    counter, direction, limit = bound
    start = _start(module, module.computations[computation], loop, counter.index)
    root = body.root
    if start is None or root is None or root.opcode != "tuple" or counter.index >= len(root.operands):
        return None
    following = _value(module, body, root.operands[counter.index], None)
    if not isinstance(following, _Counter) or following.index != counter.index or following.offset == 0:
        return None
    return _count(start + counter.offset, following.offset, direction, limit)


def _count(start: int, step: int, direction: str, limit: int) -> int | None:
    """Return the trips of `for (i = start; i <direction> limit; i += step)`."""
    if direction in ("LE", "GE"):
        limit += 1 if direction == "LE" else -1
    distance = limit - start
    if direction == "NE":
        return distance // step if distance % step == 0 and distance * step >= 0 else None
    rises = direction in ("LT", "LE")
    if rises != (step > 0) or direction not in ("LT", "LE", "GT", "GE"):
        return None
    return max(0, -(-distance // step))


def _condition(module: HloModule, condition: Computation | None) -> tuple[_Counter, str, int] | None:
    """Return (counter, direction, limit) of a condition that compares the two."""
    root = condition.root if condition else None
    arguments: list[_Value] | None = None
    # The comparison may stand in a fusion, whose parameters are elements of the loop's state.
    if condition and root and root.opcode == "fusion":
        arguments = [_value(module, condition, operand, None) for operand in root.operands]
        condition = module.called(root, "calls")
        root = condition.root if condition else None
    if condition is None or root is None or root.opcode != "compare" or len(root.operands) != 2:
        return None
    left, right = (_value(module, condition, operand, arguments) for operand in root.operands)
    direction = root.attributes.get("direction", "")
    if isinstance(left, int) and isinstance(right, _Counter):
        left, right = right, left
        direction = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE"}.get(direction, direction)
    return (left, direction, right) if isinstance(left, _Counter) and isinstance(right, int) else None


def _start(module: HloModule, computation: Computation, loop: Instruction, index: int) -> int | None:
    """Return the constant with which an element of a loop's state starts."""
    state = computation.instructions.get(loop.operands[0]) if loop.operands else None
    if state is None or state.opcode != "tuple" or index >= len(state.operands):
        return None
    value = _value(module, computation, state.operands[index], None)
    return value if isinstance(value, int) else None


def _value(
    module: HloModule, computation: Computation, name: str, arguments: list[_Value] | None, depth: int = 0
) -> _Value:
    """Return what is known about a number: its value, or which counter it is.

    Args:
        module: the program.
        computation: the computation that holds it.
        name: its name.
        arguments: what is known about the computation's parameters; None in a loop's body or condition, whose one
            parameter is the loop's state.
        depth: the depth of the search.
    """
    one = computation.instructions.get(name)
    if one is None or depth > _MAX_DEPTH:
        return None
    follow = [operand for operand in one.operands if operand in computation.instructions]
    if one.opcode == "constant":
        return int(one.value) if one.value.removeprefix("-").isdecimal() and len(one.value) < 20 else None
    if one.opcode == "parameter" and arguments is not None:
        return arguments[one.number] if one.number is not None and one.number < len(arguments) else None
    if one.opcode == "get-tuple-element" and follow and computation.instructions[follow[0]].opcode == "parameter":
        return _Counter(one.number, 0) if arguments is None and one.number is not None else None
    if one.opcode in RESHAPED and len(follow) == 1:
        return _value(module, computation, follow[0], arguments, depth + 1)
    if one.opcode in ("add", "subtract") and len(follow) == 2:
        left, right = (_value(module, computation, operand, arguments, depth + 1) for operand in follow)
        return _sum(left, right, -1 if one.opcode == "subtract" else 1)
    if one.opcode in ("fusion", "call"):
        inner = module.entered(one)
        if inner and inner.root:
            passed = [_value(module, computation, operand, arguments, depth + 1) for operand in one.operands]
            return _value(module, inner, inner.root.name, passed, depth + 1)
    return None


def _sum(left: _Value, right: _Value, sign: int) -> _Value:
    if isinstance(left, int) and isinstance(right, int):
        return left + sign * right
    if isinstance(left, _Counter) and isinstance(right, int):
        return _Counter(left.index, left.offset + sign * right)
    if isinstance(left, int) and isinstance(right, _Counter) and sign > 0:
        return _Counter(right.index, right.offset + left)
    return None
