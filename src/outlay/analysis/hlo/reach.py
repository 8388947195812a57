"""Which results of the program a value ends up in: of a gradient, the leaves that it updates."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from outlay.analysis.hlo.hlo_module import Computation, HloModule, Instruction

_MAX_PLACES = 5000
# What mixes elements: its result is another value, even where it has as many elements.
_MIXING = ("dot", "convolution", "reduce", "gather", "scatter", "custom-call", "sort", "reduce-window")
# What gives the same data on though it changes how much of it there is on a device.
_RESIZING = ("dynamic-update-slice", "reduce-scatter", "all-gather", "slice", "dynamic-slice")
_CALLING = ("fusion", "call", "fusion-start", "async-start")


@dataclass(frozen=True)
class _Place:
    computation: str
    name: str
    path: tuple[int, ...] = ()


def outputs_reached(module: HloModule, computation: str, value: str, element: int | None = None) -> tuple[int, ...]:
    """The results of the program that a value flows into element by element.

    A gradient reaches what the optimizer makes of it: the parameter's new value, and its moments. Where it is reduced
    to a number, such as a norm, it is followed no further.

    Args:
        module: the program.
        computation: the name of the computation that the value stands in.
        value: the name of an instruction, such as a collective.
        element: of an instruction with several results the one to follow; all of them if not given.

    Returns:
        Positions among the program's results, in order.
    """
    outputs: set[int] = set()
    pending = [_Place(computation, value, path) for path in _paths(module, computation, value, element)]
    seen = set(pending)
    while pending and len(seen) < _MAX_PLACES:
        place = pending.pop()
        inside = module.computations.get(place.computation)
        one = inside.instructions.get(place.name) if inside else None
        if inside is None or one is None:
            continue
        if one.is_root and inside.name == module.entry:
            outputs.add(place.path[0] if place.path else 0)
        for following in _following(module, inside, one, place.path):
            if following not in seen:
                seen.add(following)
                pending.append(following)
    return tuple(sorted(outputs))


def _paths(module: HloModule, computation: str, value: str, element: int | None) -> tuple[tuple[int, ...], ...]:
    """The elements of a value that are followed."""
    if element is not None:
        return ((element,),)
    one = module.computations[computation].instructions[value]
    # A start gives its operands too, and contexts; its end gives as many results as there are operands.
    count = len(one.operands) if one.opcode.endswith("-start") else len(one.shapes)
    return tuple((number,) for number in range(count)) if count > 1 else ((),)


def _following(module: HloModule, inside: Computation, one: Instruction, path: tuple[int, ...]) -> Iterator[_Place]:
    """Where a value goes next: to those that take it, and out of the computation whose result it is."""
    for user in inside.users.get(one.name, ()):
        for number, operand in enumerate(user.operands):
            if operand == one.name:
                yield from _taken(module, inside, user, number, one, path)
    if one.is_root:
        for computation, caller in module.callers.get(inside.name, ()):
            if caller.opcode in _CALLING or caller.opcode in ("while", "conditional"):
                yield _Place(computation, caller.name, path)
            if caller.opcode == "while":  # the next round
                yield from _parameter(module, inside.name, 0, path)


def _taken(
    module: HloModule, inside: Computation, user: Instruction, number: int, one: Instruction, path: tuple[int, ...]
) -> Iterator[_Place]:
    """What becomes of a value that an instruction takes as its operand of that number."""
    if user.opcode == "tuple":
        yield _Place(inside.name, user.name, (number, *path))
    elif user.opcode == "get-tuple-element":
        if path and user.attributes.get("index") == str(path[0]):
            yield _Place(inside.name, user.name, path[1:])
    elif user.opcode == "while":
        yield from _parameter(module, user.called("body"), 0, path)
    elif user.opcode == "conditional":
        if 1 <= number <= len(user.calls):
            yield from _parameter(module, user.calls[number - 1], 0, path)
    elif user.opcode in _CALLING:
        yield from _parameter(module, user.called("calls", "to_apply"), number, path)
    elif user.opcode == "opt-barrier" or user.opcode.endswith("-done"):
        yield _Place(inside.name, user.name, path)
    elif user.opcode not in _MIXING and (user.opcode.startswith(_RESIZING) or _same_size(user, one)):
        several = len(user.operands) > 1 and len(user.shapes) == len(user.operands)  # moved together
        yield _Place(inside.name, user.name, (number,) if several else ())


def _parameter(module: HloModule, computation: str, number: int, path: tuple[int, ...]) -> Iterator[_Place]:
    inner = module.computations.get(computation)
    parameter = inner.parameter(number) if inner else None
    if parameter is not None:
        yield _Place(computation, parameter.name, path)


def _same_size(user: Instruction, one: Instruction) -> bool:
    size = math.prod(one.shapes[0].dims) if one.shapes else 0
    return size > 1 and any(math.prod(shape.dims) == size for shape in user.shapes)
