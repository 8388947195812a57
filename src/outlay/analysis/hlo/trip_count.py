"""The trip count of a loop, from its condition: for compilers that do not write it down."""

from __future__ import annotations

from dataclasses import dataclass

from outlay.analysis.hlo.hlo_module import Computation, HloModule, Instruction

# What leaves a number as it is.
_KEEPS = ("copy", "bitcast", "convert", "reshape")
_MAX_DEPTH = 50


@dataclass(frozen=True)
class _Counter:
    """An element of a loop's state, plus a number."""

    index: int
    offset: int


_Value = int | _Counter | None


def derived_trip_count(module: HloModule, computation: str, loop: Instruction) -> int | None:
    """How often the body runs where the condition compares a counter with a constant; None where it does not.

    Args:
        module: the program.
        computation: the name of the computation that the loop stands in.
        loop: a `while`.
    """
    body = module.computations.get(loop.called("body"))
    bound = _condition(module, module.computations.get(loop.called("condition")))
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
    """Trips of `for (i = start; i <direction> limit; i += step)`."""
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
    """(counter, direction, limit) of a condition that compares the two."""
    root = condition.root if condition else None
    arguments: list[_Value] | None = None
    if condition and root and root.opcode == "fusion":
        arguments = [_value(module, condition, operand, None) for operand in root.operands]
        condition = module.computations.get(root.called("calls"))
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
    """The constant that an element of a loop's state starts with."""
    state = computation.instructions.get(loop.operands[0]) if loop.operands else None
    if state is None or state.opcode != "tuple" or index >= len(state.operands):
        return None
    value = _value(module, computation, state.operands[index], None)
    return value if isinstance(value, int) else None


def _value(
    module: HloModule, computation: Computation, name: str, arguments: list[_Value] | None, depth: int = 0
) -> _Value:
    """What is known of a number: itself, or which counter it is.

    Args:
        module: the program.
        computation: it stands in.
        name: its name.
        arguments: what is known of the computation's parameters; None in a loop's body or condition, whose one
            parameter is the loop's state.
        depth: of the search.
    """
    one = computation.instructions.get(name)
    if one is None or depth > _MAX_DEPTH:
        return None
    follow = [operand for operand in one.operands if operand in computation.instructions]
    if one.opcode == "constant":
        return int(one.value) if one.value.removeprefix("-").isdecimal() and len(one.value) < 20 else None
    if one.opcode == "parameter" and arguments is not None:
        number = int(one.value) if one.value.isdecimal() and len(one.value) < 10 else -1
        return arguments[number] if 0 <= number < len(arguments) else None
    if one.opcode == "get-tuple-element" and follow and computation.instructions[follow[0]].opcode == "parameter":
        index = one.attributes.get("index", "")
        return _Counter(int(index), 0) if arguments is None and index.isdecimal() and len(index) < 10 else None
    if one.opcode in _KEEPS and len(follow) == 1:
        return _value(module, computation, follow[0], arguments, depth + 1)
    if one.opcode in ("add", "subtract") and len(follow) == 2:
        left, right = (_value(module, computation, operand, arguments, depth + 1) for operand in follow)
        return _sum(left, right, -1 if one.opcode == "subtract" else 1)
    if one.opcode in ("fusion", "call"):
        inner = module.computations.get(one.called("calls", "to_apply"))
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
