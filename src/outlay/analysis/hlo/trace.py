"""Which parameter of the program a value is: back through views, slices, conversions, loops and fusions."""

from __future__ import annotations

from dataclasses import dataclass, replace

from outlay.analysis.hlo.hlo_module import HloModule, Instruction

_MAX_STEPS = 1000

# What gives the same data on: seen otherwise, in part, in another precision, or on other devices.
PASSING = frozenset(
    {
        *("bitcast", "bitcast-convert", "convert", "copy", "reshape", "transpose", "reduce-precision"),
        *("slice", "dynamic-slice", "all-gather", "all-to-all", "collective-permute", "opt-barrier"),
        *("copy-start", "slice-start", "dynamic-slice-start"),
        *("all-gather-start", "all-to-all-start", "collective-permute-start"),
        *("copy-done", "slice-done", "dynamic-slice-done", "fusion-done", "async-update", "async-done"),
        *("all-gather-done", "all-to-all-done", "collective-permute-done"),
    }
)
_VIEWS = ("bitcast", "opt-barrier")
# What a loop may do with an element of its state that it does not change.
_KEEPING = ("tuple", "get-tuple-element", "copy", "bitcast", "opt-barrier", "copy-start", "copy-done")
_CALLING = ("fusion", "call", "fusion-start", "async-start")


@dataclass(frozen=True)
class Traced:
    """A parameter that was found.

    Attributes:
        parameter: its number among the entry's.
        through: the operations that the data went through on its way, from the parameter on; views are left out.
    """

    parameter: int
    through: tuple[str, ...]


@dataclass(frozen=True)
class _Place:
    """A value: an instruction, the element of its tuple, and the calls that were entered to get there."""

    computation: str
    name: str
    path: tuple[int, ...] = ()
    calls: tuple[tuple[str, Instruction], ...] = ()


def leaf_parameter(module: HloModule, computation: str, value: str) -> Traced | None:
    """The parameter of the program that a value holds the data of; None where it is computed.

    A value that a loop changes is computed; one that it only reads, such as weights it slices, is followed out of it.

    Args:
        module: the program.
        computation: the name of the computation that the value stands in.
        value: the name of an instruction, such as an operand of a collective.
    """
    place: _Place | None = _Place(computation, value)
    through: list[str] = []
    for _ in range(_MAX_STEPS):
        if place is None:
            return None
        one = _instruction(module, place)
        if one is None:
            return None
        if one.opcode == "parameter" and place.computation == module.entry:
            # A program with very many parameters takes them as one tuple.
            return Traced(place.path[0] if place.path else _number(one), tuple(reversed(through)))
        if one.opcode in PASSING and one.opcode not in _VIEWS and not one.opcode.endswith("-done"):
            through.append(one.opcode.removesuffix("-start"))
        place = _before(module, place, one)
    return None


def _number(parameter: Instruction) -> int:
    return int(parameter.value) if parameter.value.isdecimal() and len(parameter.value) < 10 else 0


def _instruction(module: HloModule, place: _Place) -> Instruction | None:
    computation = module.computations.get(place.computation)
    return computation.instructions.get(place.name) if computation else None


def _before(module: HloModule, place: _Place, one: Instruction) -> _Place | None:
    """Where the data of a value comes from, one step back."""
    if one.opcode == "get-tuple-element":
        index = _index(one)
        return None if index is None else _operand(place, one, 0, (index, *place.path))
    if one.opcode == "tuple":
        return _operand(place, one, place.path[0], place.path[1:]) if place.path else None
    if one.opcode == "parameter":
        return _argument(module, place, one)
    if one.opcode == "while":
        return _operand(place, one, 0, place.path) if _is_kept(module, one, place.path) else None
    if one.opcode in _CALLING:
        inner = module.computations.get(one.called("calls", "to_apply"))
        if inner is None or inner.root is None:
            return None
        return _Place(inner.name, inner.root.name, place.path, (*place.calls, (place.computation, one)))
    if one.opcode not in PASSING:
        return None
    if place.path and len(one.operands) > 1 and "slice" not in one.opcode:  # several arrays that are moved together
        return _operand(place, one, place.path[0], place.path[1:])
    return _operand(place, one, 0, place.path)


def _operand(place: _Place, one: Instruction, number: int, path: tuple[int, ...]) -> _Place | None:
    return replace(place, name=one.operands[number], path=path) if number < len(one.operands) else None


def _index(one: Instruction) -> int | None:
    index = one.attributes.get("index", "")
    return int(index) if index.isdecimal() and len(index) < 10 else None


def _argument(module: HloModule, place: _Place, parameter: Instruction) -> _Place | None:
    """What a computation is given for its parameter."""
    if place.calls:
        *outer, (computation, caller) = place.calls
    else:
        callers = module.callers.get(place.computation, ())
        if len(callers) != 1:
            return None
        outer, (computation, caller) = [], callers[0]
    number = _number(parameter)
    if caller.opcode == "while":
        if not _is_kept(module, caller, place.path):
            return None
    elif caller.opcode == "conditional":
        number = 1 + caller.calls.index(place.computation)
    elif caller.opcode not in _CALLING:
        return None
    return _operand(_Place(computation, "", (), tuple(outer)), caller, number, place.path)


def _is_kept(module: HloModule, loop: Instruction, path: tuple[int, ...]) -> bool:
    """Whether a loop's body gives an element of its state on as it got it."""
    body = module.computations.get(loop.called("body"))
    one = body.root if body else None
    if body is None or one is None or not path:
        return False
    following = _Place(body.name, one.name, path)
    for _ in range(_MAX_STEPS):
        one = _instruction(module, following)
        if one is None:
            return False
        if one.opcode == "parameter":
            return following.path == path
        if one.opcode not in (
            "tuple",
            "get-tuple-element",
            "copy",
            "bitcast",
            "opt-barrier",
            "copy-start",
            "copy-done",
        ):
            return False
        step = _before(module, following, one)
        if step is None:
            return False
        following = step
    return False
