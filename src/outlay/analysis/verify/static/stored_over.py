"""Results that a compiled program stores where an argument lies that is still read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from outlay.analysis.attribution.provenance import origin_of
from outlay.analysis.hlo.hlo_module import Computation, HloModule, Instruction

_SAME_MEMORY = ("bitcast", "get-tuple-element")


@dataclass(frozen=True)
class Overwritten:
    """A result that takes the memory of an argument too early.

    Attributes:
        result: its number.
        made_by: the instruction that makes it.
        parameter: the number of the argument.
        reader: an instruction that reads the argument; the one that makes the result if that does not fit in there.
        words: what is wrong, in words.
    """

    result: int
    made_by: Instruction
    parameter: int
    reader: Instruction
    words: str

    def in_words(self, module: HloModule) -> str:
        """Return the instruction with its line, and what is wrong."""
        source = origin_of(module, module.entry, self.made_by).source
        where = f" ({source})" if source else ""
        return f"{self.made_by.opcode} %{self.made_by.name}{where} {self.words}"


def overwritten(module: HloModule) -> Iterator[Overwritten]:
    """Yield the results that are stored where an argument lies that is read afterwards, or that has another size.

    Args:
        module: a program whose instructions are in the order of execution; of others nothing is known.

    Examples:
        >>> from outlay.analysis.hlo.parse import parse_hlo
        >>> module = parse_hlo('''HloModule f, is_scheduled=true, input_output_alias={ {0}: (0, {}, may-alias) }
        ...
        ... ENTRY %main (x: f32[4]) -> (f32[4], f32[4]) {
        ...   %x = f32[4]{0} parameter(0)
        ...   %y = f32[4]{0} tanh(%x)
        ...   %z = f32[4]{0} sine(%x)
        ...   ROOT %both = (f32[4]{0}, f32[4]{0}) tuple(%y, %z)
        ... }''')
        >>> [one.words for one in overwritten(module)]
        ['is stored where argument 0 lies, which sine %z reads afterwards']
    """
    entry = module.computations[module.entry]
    root = entry.root
    if not module.is_scheduled or root is None or root.opcode != "tuple":
        return
    order = {name: number for number, name in enumerate(entry.instructions)}
    taken: dict[int, int] = {}
    for index, number in module.input_output_alias:
        parameter = entry.parameter(number)
        if len(index) != 1 or index[0] >= len(root.operands) or parameter is None or len(parameter.shapes) != 1:
            continue
        made_by = _made_by(entry, root.operands[index[0]])
        words, reader = "", made_by
        late = [one for one in _readers(entry, parameter) if order[one.name] > order[made_by.name]]
        if number in taken:
            words = f"is stored where argument {number} lies, as result {taken[number]} is"
        elif root.shapes[index[0]].num_bytes != parameter.shapes[0].num_bytes:
            sizes = f"{root.shapes[index[0]].num_bytes} and {parameter.shapes[0].num_bytes} bytes"
            words = f"is stored where argument {number} lies, which has another size ({sizes})"
        elif late and made_by is not parameter:
            reader = late[0]
            words = f"is stored where argument {number} lies, which {reader.opcode} %{reader.name} reads afterwards"
        taken[number] = index[0]
        if words:
            yield Overwritten(index[0], made_by, number, reader, words)


def _made_by(entry: Computation, name: str) -> Instruction:
    one = entry.instructions[name]
    while one.opcode in _SAME_MEMORY:
        one = entry.instructions[one.operands[0]]
    return one


def _readers(entry: Computation, parameter: Instruction) -> Iterator[Instruction]:
    """Yield what reads an argument; a tuple only names it."""
    pending = [parameter.name]
    while pending:
        for user in entry.users.get(pending.pop(), ()):
            if user.opcode in _SAME_MEMORY:
                pending.append(user.name)
            elif user.opcode != "tuple":
                yield user
