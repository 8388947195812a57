"""Name the lines of a compiled program from which only wrong results follow."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from outlay.analysis.attribution.provenance import origin_of
from outlay.analysis.hlo.hlo_collectives import is_collective
from outlay.analysis.hlo.hlo_module import Computation, HloModule, Instruction
from outlay.analysis.hlo.opcodes import BARRIERS, KINDS, NAMES
from outlay.core.quantities import counted, listed

_SILENT = NAMES | BARRIERS | KINDS["makes"] | {"copy", "broadcast"}
_MAX_NAMED = 3


def only_in_wrong(module: HloModule, wrong: Collection[int]) -> list[str]:
    """Return a sentence for each line whose operations reach wrong results and no right one, in the order of the text.

    Args:
        module: the program.
        wrong: the numbers of its wrong results.

    Returns:
        None if every result is wrong: then every line may be it.

    Examples:
        >>> from outlay.analysis.hlo.parse import parse_hlo
        >>> only_in_wrong(parse_hlo('''HloModule jit_f
        ...
        ... ENTRY %main (x: f32[4]) -> (f32[4], f32[4]) {
        ...   %x = f32[4]{0} parameter(0)
        ...   %y = f32[4]{0} tanh(%x), metadata={op_name="jit(f)/tanh" source_file="/home/me/f.py" source_line=3}
        ...   %z = f32[4]{0} sine(%y), metadata={op_name="jit(f)/sin" source_file="/home/me/f.py" source_line=4}
        ...   ROOT %both = (f32[4]{0}, f32[4]{0}) tuple(%y, %z)
        ... }'''), [1])
        ['only wrong results follow from 1 operation of /home/me/f.py:4: sine %z']
    """
    entry = module.computations[module.entry]
    root = entry.root
    if root is None or root.opcode != "tuple":
        return []
    results = {True: [], False: []}
    for number, name in enumerate(root.operands):
        results[number in wrong].append(name)
    if not results[False]:
        return []
    reached = _reached(entry, results[True]) - _reached(entry, results[False])
    by_line: dict[str, list[Instruction]] = {}
    for one in entry.instructions.values():
        if one.name in reached and one.opcode not in _SILENT:
            source = origin_of(module, entry.name, one).source
            by_line.setdefault(str(source or "an unknown line"), []).append(one)
    return [_in_words(line, ones) for line, ones in by_line.items()]


def _reached(entry: Computation, names: Iterable[str]) -> set[str]:
    """Return the instructions of the entry from which values follow."""
    pending, seen = list(names), set(names)
    while pending:
        one = entry.instructions.get(pending.pop())
        for operand in one.operands if one else ():
            if operand not in seen:
                seen.add(operand)
                pending.append(operand)
    return seen


def _in_words(line: str, ones: list[Instruction]) -> str:
    exchanges_first = sorted(ones, key=lambda one: not is_collective(one.opcode))
    names = listed([f"{one.opcode} %{one.name}" for one in exchanges_first], _MAX_NAMED)
    return f"only wrong results follow from {counted(len(ones), 'operation')} of {line}: {names}"
