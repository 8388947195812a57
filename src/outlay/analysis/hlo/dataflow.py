"""Follow values through a program: back to its parameters, and on to its results."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeAlias

from outlay.analysis.hlo.hlo_module import Computation, HloModule, Instruction
from outlay.analysis.hlo.opcodes import BARRIERS, FUSIONS, KINDS, REARRANGED, both_halves

# Bounds for unusual programs: a search that takes longer gives up.
_MAX_STEPS = 1000
_MAX_VALUES = 5000

_PASSING = both_halves(
    REARRANGED
    | KINDS["cuts"]
    | (BARRIERS - {"add-dependency"})  # it takes a token besides
    | {"all-gather", "all-to-all", "collective-permute"}
) | {"fusion-done", "async-update", "async-done"}
"""Operations that pass on the same data: reshaped, in part, in another precision, or on other devices."""
_CALLING = (*FUSIONS, "call", "async-start")
_MIXING = frozenset().union(
    *(KINDS[kind] for kind in ("multiplies", "reduces", "looks up", "scatters", "sorts", "library"))
)
"""Operations that mix elements: the result is another value, even if it has as many elements."""
# Operations that pass on the same data although a device gets more or less of it.
_RESIZING = ("dynamic-update-slice", "reduce-scatter", "all-gather", "slice", "dynamic-slice")


_Calls: TypeAlias = "tuple[tuple[str, Instruction], ...]"
"""Calls that were entered, outermost first, each with the computation that it stands in."""


class _Value(NamedTuple):
    """A value: an instruction, an element of its tuple, and the calls that were entered to reach it."""

    computation: str
    name: str
    path: tuple[int, ...] = ()
    calls: _Calls = ()


def leaf_parameter(module: HloModule, computation: str, value: str) -> int | None:
    """Return the number of the program's parameter whose data a value holds; None if it is computed.

    What a loop only reads, such as weights that it slices, is followed out of it. So is what it passes on from one
    iteration to the next, or collects in an array piece by piece: a scan saves the weights of its layers for the
    backward pass. A value that it computes is no parameter's.

    Args:
        module: the program.
        computation: the name of the value's computation.
        value: the name of an instruction, such as an operand of a collective.
    """
    parameters: set[int] = set()
    pending, seen = [_Value(computation, value)], set[Any]()
    while pending:
        source = pending.pop()
        one = _instruction(module, source)
        if one is None or len(seen) > _MAX_STEPS:
            return None
        place = source.computation, source.name, source.path, tuple((where, call.name) for where, call in source.calls)
        if place in seen:  # a later iteration of a loop
            continue
        seen.add(place)
        if one.opcode == "parameter" and source.computation == module.entry:
            # A program with very many parameters takes them as one tuple.
            parameters.add(source.path[0] if source.path else one.number or 0)
        elif not _is_blank(module, source, one):
            before = _before(module, source, one)
            if not before:
                return None
            pending += before
    return parameters.pop() if len(parameters) == 1 else None


def _instruction(module: HloModule, value: _Value) -> Instruction | None:
    computation = module.computations.get(value.computation)
    return computation.instructions.get(value.name) if computation else None


def _is_blank(module: HloModule, value: _Value, one: Instruction) -> bool:
    """Return whether a value is one constant everywhere, such as the zeros in an array that a loop then fills."""
    if one.opcode == "broadcast":
        known = module.computations[value.computation].instructions
        return all(operand in known and known[operand].opcode == "constant" for operand in one.operands)
    # A TPU's compiler sets aside an array without writing to it.
    return one.opcode == "constant" or "AllocateBuffer" in one.attributes.get("custom_call_target", "")


def _before(module: HloModule, value: _Value, one: Instruction) -> list[_Value]:
    """Return where the data of a value comes from, one step back; nowhere if it is computed."""
    if one.opcode == "get-tuple-element":
        return [] if one.number is None else _operand(value, one, 0, (one.number, *value.path))
    if one.opcode == "parameter":
        return _argument(module, value, one)
    if one.opcode == "while":
        return _carried(module, value.computation, one, value.path, value.calls)
    if one.opcode == "dynamic-update-slice":
        return [*_operand(value, one, 0, value.path), *_operand(value, one, 1, value.path)]
    if one.opcode in _CALLING:
        return _result(module.entered(one), value.path, (*value.calls, (value.computation, one)))
    # Several arrays that are moved together are told apart by position, like the elements of a tuple.
    is_several = value.path and len(one.operands) > 1 and "slice" not in one.opcode
    if one.opcode == "tuple" or (one.opcode in _PASSING and is_several):
        return _operand(value, one, value.path[0], value.path[1:]) if value.path else []
    return _operand(value, one, 0, value.path) if one.opcode in _PASSING else []


def _operand(value: _Value, one: Instruction, number: int, path: tuple[int, ...]) -> list[_Value]:
    return [value._replace(name=one.operands[number], path=path)] if number < len(one.operands) else []


def _result(inner: Computation | None, path: tuple[int, ...], calls: _Calls) -> list[_Value]:
    """Return what a computation that was entered by these calls returns."""
    return [_Value(inner.name, inner.root.name, path, calls)] if inner and inner.root else []


def _carried(
    module: HloModule, computation: str, loop: Instruction, path: tuple[int, ...], outer: _Calls
) -> list[_Value]:
    """Return where an element of a loop's state comes from: what it starts with, and what an iteration leaves there."""
    start = _operand(_Value(computation, "", (), outer), loop, 0, path)
    after = _result(module.called(loop, "body"), path, (*outer, (computation, loop)))
    return [*start, *after] if path and start and after else []


def _argument(module: HloModule, value: _Value, parameter: Instruction) -> list[_Value]:
    """Return what a computation is given for its parameter."""
    if value.calls:
        *entered, (computation, caller) = value.calls
    else:
        callers = module.callers.get(value.computation, ())
        if len(callers) != 1:
            return []
        entered, (computation, caller) = [], callers[0]
    outer, number = tuple(entered), parameter.number or 0
    if caller.opcode == "while":
        return _carried(module, computation, caller, value.path, outer)
    if caller.opcode == "conditional":
        number = 1 + caller.calls.index(value.computation)
    elif caller.opcode not in _CALLING:
        return []
    return _operand(_Value(computation, "", (), outer), caller, number, value.path)


def outputs_reached(module: HloModule, computation: str, value: str, element: int | None = None) -> tuple[int, ...]:
    """Return the results of the program into which a value flows element by element.

    A gradient reaches what the optimizer makes of it: the parameter's new value, and its moments. If it is reduced to a
    number, such as a norm, it is followed no further.

    Args:
        module: the program.
        computation: the name of the value's computation.
        value: the name of an instruction, such as a collective.
        element: which of several results to follow; by default all of them.

    Returns:
        Positions among the program's results, in order.
    """
    outputs: set[int] = set()
    pending = [_Value(computation, value, path) for path in _paths(module, computation, value, element)]
    seen = set(pending)
    while pending and len(seen) < _MAX_VALUES:
        current = pending.pop()
        inside, one = module.computations.get(current.computation), _instruction(module, current)
        if inside is None or one is None:
            continue
        if one.is_root and inside.name == module.entry:
            outputs.add(current.path[0] if current.path else 0)
        for following in _following(module, inside, one, current.path):
            if following not in seen:
                seen.add(following)
                pending.append(following)
    return tuple(sorted(outputs))


def _paths(module: HloModule, computation: str, value: str, element: int | None) -> tuple[tuple[int, ...], ...]:
    """Return the elements of a value that are followed."""
    if element is not None:
        return ((element,),)
    one = module.computations[computation].instructions[value]
    # A start also returns its operands, and contexts; its done returns as many results as there are operands.
    count = len(one.operands) if one.opcode.endswith("-start") else len(one.shapes)
    return tuple((number,) for number in range(count)) if count > 1 else ((),)


def _following(module: HloModule, inside: Computation, one: Instruction, path: tuple[int, ...]) -> list[_Value]:
    """Return where a value goes next: into its users, and out of the computation whose result it is."""
    following: list[_Value | None] = []
    for user, number in inside.uses.get(one.name, ()):
        following.append(_taken(module, inside, user, number, one, path))
    if one.is_root:
        for computation, caller in module.callers.get(inside.name, ()):
            if caller.opcode in _CALLING or caller.opcode in ("while", "conditional"):
                following.append(_Value(computation, caller.name, path))
            if caller.opcode == "while":  # the next iteration
                following.append(_parameter(inside, 0, path))
    return [value for value in following if value is not None]


def _taken(
    module: HloModule, inside: Computation, user: Instruction, number: int, one: Instruction, path: tuple[int, ...]
) -> _Value | None:
    """Return what becomes of a value that an instruction takes as its operand of that number; None if it ends there."""
    opcode = user.opcode
    if opcode == "tuple":
        return _Value(inside.name, user.name, (number, *path))
    if opcode == "get-tuple-element":
        return _Value(inside.name, user.name, path[1:]) if path and user.number == path[0] else None
    if opcode == "while":
        return _parameter(module.called(user, "body"), 0, path)
    if opcode == "conditional":
        is_branch = 1 <= number <= len(user.calls)
        return _parameter(module.computations.get(user.calls[number - 1]), 0, path) if is_branch else None
    if opcode in _CALLING:
        return _parameter(module.entered(user), number, path)
    if opcode in BARRIERS or opcode.endswith("-done"):
        return _Value(inside.name, user.name, path)
    if opcode not in _MIXING and (opcode.startswith(_RESIZING) or _same_size(user, one)):
        several = len(user.operands) > 1 and len(user.shapes) == len(user.operands)  # moved together
        return _Value(inside.name, user.name, (number,) if several else ())
    return None


def _parameter(inner: Computation | None, number: int, path: tuple[int, ...]) -> _Value | None:
    parameter = inner.parameter(number) if inner else None
    return _Value(inner.name, parameter.name, path) if inner is not None and parameter is not None else None


def _same_size(user: Instruction, one: Instruction) -> bool:
    size = math.prod(one.shapes[0].dims) if one.shapes else 0
    return size > 1 and any(math.prod(shape.dims) == size for shape in user.shapes)
