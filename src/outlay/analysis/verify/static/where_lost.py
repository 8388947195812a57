"""Name the lines at which it is no longer known how devices hold a value."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from outlay.analysis.attribution.provenance import origin_of
from outlay.analysis.hlo.hlo_module import Computation, Instruction
from outlay.analysis.hlo.opcodes import CONTROL, FUSIONS, NAMES
from outlay.analysis.verify.static.spreads import Tree, Value
from outlay.analysis.verify.static.visit import Reading

_MAX_NAMED = 4
_NOT_KNOWN = ("unknown", "varying")
_SILENT = NAMES | CONTROL | FUSIONS


def where_lost(reading: Reading, axes: Collection[int]) -> list[str]:
    """Return the operations, with their lines, after which something is not known that was known of their operands.

    Args:
        reading: the program, followed.
        axes: the mesh axes that are asked about.
    """
    listed = dict.fromkeys(_each(reading, axes))
    return list(listed)[:_MAX_NAMED]


def _each(reading: Reading, axes: Collection[int]) -> Iterator[str]:
    for (name, value_name), value in reading.seen.items():
        computation = reading.module.computations[name]
        one = computation.instructions[value_name]
        if one.opcode in _SILENT:
            continue
        operands = [reading.seen[name, operand] for operand in one.operands if (name, operand) in reading.seen]
        for axis in axes:
            if _is_lost(value, axis) and not any(_is_lost(operand, axis) for operand in operands):
                yield f"{_what(one)}{_line(reading, computation, one)} over {reading.axes[axis][0]!r}"


def _is_lost(value: Tree, axis: int) -> bool:
    if isinstance(value, Value):
        return value.spreads[axis].kind in _NOT_KNOWN and value.numbers is None
    return any(_is_lost(one, axis) for one in value)


def _what(one: Instruction) -> str:
    target = one.attributes.get("custom_call_target", "").strip('"')
    return f"{one.opcode} {target}" if target else one.opcode


def _line(reading: Reading, computation: Computation, one: Instruction) -> str:
    source = origin_of(reading.module, computation.name, one).source or next(iter(one.frames), None)
    return f" ({source})" if source else ""
