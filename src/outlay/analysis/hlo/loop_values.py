"""Say what a value inside a loop has to do with it: whether it is the same in each turn, or only added up there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from outlay.analysis.hlo.hlo_module import Computation, HloModule, Instruction
from outlay.analysis.hlo.loops import trip_count
from outlay.analysis.hlo.opcodes import BARRIERS, KINDS, RESHAPED, both_halves

_MAX_VALUES = 5000  # a search that takes longer gives up
_MOVES = RESHAPED | KINDS["rearranges"] | {"copy-start"}
"""Operations that add up as well before as after a sum over devices."""
_CALLING = ("fusion", "call")
_UNKNOWABLE = KINDS["random"] | both_halves(KINDS["transfers"] - {"send"}) | {"conditional"}

_Place = tuple[str, str, int | None]
"""A value: its computation, its instruction, and the element of a tuple."""


@dataclass(frozen=True)
class Loop:
    """A loop that runs more than once."""

    body: Computation
    trips: int
    instruction: Instruction


def loops_around(module: HloModule, computation: str) -> list[Loop]:
    """Return the loops of known length in whose bodies a computation runs, the outermost first."""
    loops: list[Loop] = []
    for _ in range(len(module.computations)):
        callers = module.callers.get(computation, ())
        if len(callers) != 1:
            break
        ((outer, caller),) = callers
        trips = trip_count(module, outer, caller) if caller.opcode == "while" else None
        if trips is not None and trips > 1 and caller.called("body") == computation:
            loops.append(Loop(module.computations[computation], trips, caller))
        computation = outer
    return loops[::-1]


def is_same_each_turn(module: HloModule, loop: Loop, computation: str, values: Sequence[str]) -> bool:
    """Return whether values that are computed within a turn of a loop depend on nothing that the loop changes.

    Args:
        module: the program.
        loop: the loop.
        computation: the computation of the values: the loop's body, or one that it runs.
        values: the names of instructions.
    """
    pending: list[_Place] = [(computation, name, None) for name in values]
    seen: set[_Place] = set()
    while pending:
        place = pending.pop()
        if place in seen:
            continue
        seen.add(place)
        before = _before(module, loop, place) if len(seen) < _MAX_VALUES else None
        if before is None:
            return False
        pending += before
    return True


def _before(module: HloModule, loop: Loop, place: _Place) -> list[_Place] | None:
    """Return what a value is computed from, within a turn; None if that is not known, or changes from turn to turn."""
    where, name, element = place
    inside = module.computations[where]
    one = inside.instructions.get(name)
    if one is None or one.opcode in _UNKNOWABLE:
        return None
    if one.opcode == "get-tuple-element":
        return [(where, one.operands[0], one.number)]
    if one.opcode == "parameter":
        if where == loop.body.name:
            return [] if element is not None and _is_passed_on(inside, element) else None
        return _argument(module, inside, one, element)
    if one.opcode == "tuple" and element is not None:
        return [(where, one.operands[element], None)]
    if one.opcode == "while":
        ends = [module.called(one, "body"), module.called(one, "condition")]
        if any(end is None or end.root is None for end in ends):
            return None
        (body, test) = [(end.name, end.root.name) for end in ends if end and end.root]
        return [(where, one.operands[0], element), (*body, element), (*test, None)]
    return [(where, operand, None) for operand in one.operands]


def _argument(
    module: HloModule, inside: Computation, parameter: Instruction, element: int | None
) -> list[_Place] | None:
    callers = module.callers.get(inside.name, ())
    if len(callers) != 1:
        return None
    ((outer, caller),) = callers
    if caller.opcode == "while":
        body = module.called(caller, "body")
        if body is None or body.root is None:
            return None
        return [(outer, caller.operands[0], element), (body.name, body.root.name, element)]
    number = parameter.number or 0
    return [(outer, caller.operands[number], element)] if number < len(caller.operands) else None


def _is_passed_on(body: Computation, element: int) -> bool:
    """Return whether a loop passes an element of its state on unchanged."""
    name = body.root.operands[element] if body.root and element < len(body.root.operands) else ""
    while (one := body.instructions.get(name)) is not None:
        if one.opcode == "get-tuple-element":
            state = body.instructions.get(one.operands[0])
            return one.number == element and state is not None and state.opcode == "parameter"
        if one.opcode not in _MOVES or one.opcode == "convert":
            return False
        name = one.operands[0]
    return False


def is_only_added_up(module: HloModule, loop: Loop, computation: str, value: str) -> bool:
    """Return whether a loop only adds a value to sums that are not read before the loop ends.

    Args:
        module: the program.
        loop: the loop.
        computation: the computation of the value: the loop's body, or one that it runs.
        value: the name of an instruction.
    """
    pending: list[tuple[_Place, bool]] = [((computation, value, None), False)]
    seen: set[tuple[_Place, bool]] = set()
    while pending:
        current = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        if len(seen) > _MAX_VALUES:
            return False
        (where, name, element), is_added = current
        inside = module.computations[where]
        one = inside.instructions[name]
        if one.is_root:
            if where == loop.body.name:
                if not (is_added and element is not None and _is_a_sum(module, loop.body, element)):
                    return False
                continue
            callers = module.callers.get(where, ())
            if len(callers) != 1:
                return False
            ((outer, caller),) = callers
            pending.append(((outer, caller.name, element), is_added))
            if caller.opcode == "while" and (state := inside.parameter(0)):
                pending.append(((where, state.name, element), is_added))
        for user in inside.users.get(name, ()):
            after = _after(module, inside, one, user, element, is_added)
            if after is None:
                return False
            pending += after
    return True


def _after(
    module: HloModule, inside: Computation, one: Instruction, user: Instruction, element: int | None, is_added: bool
) -> list[tuple[_Place, bool]] | None:
    """Return where a value goes as a part of a sum; None if a user does anything else with it."""
    numbers = [number for number, operand in enumerate(user.operands) if operand == one.name]
    if user.opcode == "tuple":
        return [((inside.name, user.name, number), is_added) for number in numbers]
    if user.opcode == "get-tuple-element":
        return [((inside.name, user.name, None), is_added)] if element in (None, user.number) else []
    if user.opcode in _MOVES or user.opcode in BARRIERS or user.opcode.endswith("-done"):
        return [((inside.name, user.name, element), is_added)]
    if user.opcode == "add":
        return [((inside.name, user.name, None), True)]
    # A slice of a sum is the sum of slices, also of a device's own: the number of the device is the same each turn.
    if user.opcode in ("slice", "dynamic-slice", "dynamic-update-slice") and numbers in ([0], [1]):
        return [((inside.name, user.name, None), is_added)]
    if user.opcode in _CALLING and (fused := module.called(user, "calls", "to_apply")):
        parameters = [fused.parameter(number) for number in numbers]
        return [((fused.name, each.name, element), is_added) for each in parameters if each]
    return None


def _is_a_sum(module: HloModule, body: Computation, element: int) -> bool:
    """Return whether a loop takes an element of its state for nothing but to add to it."""
    state = body.parameter(0)
    taken = [] if state is None else body.users.get(state.name, ())
    places = [(body, one) for one in taken if one.opcode == "get-tuple-element" and one.number == element]
    for _ in range(_MAX_VALUES):
        if len(places) != 1:
            return False
        ((inside, one),) = places
        if one.opcode == "tuple" and one.is_root and inside is body:
            return True
        places = list(_added_to(module, inside, one))
    return False


def _added_to(module: HloModule, inside: Computation, one: Instruction) -> Iterator[tuple[Computation, Instruction]]:
    """Yield what takes a sum: its users, and out of a fusion the users of its result."""
    if one.is_root:
        for outer, caller in module.callers.get(inside.name, ()):
            yield module.computations[outer], caller
        return
    for user in inside.users.get(one.name, ()):
        if user.opcode in _CALLING and (fused := module.called(user, "calls", "to_apply")):
            for number, operand in enumerate(user.operands):
                if operand == one.name and (parameter := fused.parameter(number)):
                    yield fused, parameter
        elif user.opcode in _MOVES or user.opcode in ("add", "tuple", "get-tuple-element"):
            yield inside, user
        else:
            yield from ((inside, user), (inside, user))  # two places: more than one sum
