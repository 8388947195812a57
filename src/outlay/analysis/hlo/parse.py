"""Parse optimized HLO text into an `HloModule`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

from outlay.analysis.hlo.attributes import (
    QUOTED,
    TABLES,
    Attributes,
    Frames,
    SourceTables,
    closing,
    read_attributes,
    read_metadata,
)
from outlay.analysis.hlo.hlo_module import (
    Computation,
    HloModule,
    Instruction,
    Shape,
    bounded_int,
    called_names,
    read_shapes,
)
from outlay.core.error_types import ExplainError

# `ENTRY %main.5 (x: f32[8]) -> f32[8] {`; text for people leaves out the percent sign and the types.
_COMPUTATION = re.compile(r"(ENTRY )?+%?([\w.\-]++) (?=[({])")
# Numbers have bounded lengths everywhere: Python refuses to convert very long ones.
_ALIAS = re.compile(r"\{([\d,\s]{0,99})\}:\s*+\(\s*+(\d{1,9})")


def parse_hlo(text: str) -> HloModule:
    """Parse the result of `compiled.as_text()` by the CPU, GPU and TPU compilers.

    A line that cannot be parsed goes into `skipped`; all others are parsed all the same.

    Args:
        text: the module, as printed by XLA.

    Raises:
        ExplainError: the text is not HLO.

    Examples:
        >>> module = parse_hlo('''HloModule jit_f, num_partitions=2
        ...
        ... ENTRY %main (x: f32[4]) -> f32[4] {
        ...   %x = f32[4]{0} parameter(0)
        ...   ROOT %y = f32[4]{0} all-reduce(%x), channel_id=1, replica_groups={{0,1}}, to_apply=%add
        ... }''')
        >>> module.computations["main"].root.opcode, module.num_partitions
        ('all-reduce', 2)
    """
    lines = text.splitlines()
    head = next((number for number, line in enumerate(lines) if line.startswith("HloModule ")), None)
    if head is None:
        raise ExplainError(_not_hlo(lines))
    reading = _Reading()
    for number, line in _instructions(lines, head + 1):
        reading.take(number, line)
    name, _, attributes = lines[head].removeprefix("HloModule ").partition(",")
    settings = read_attributes(attributes)
    return HloModule(
        name=name.strip(),
        num_partitions=_positive(settings.get("num_partitions", "1")),
        num_replicas=_positive(settings.get("replica_count", "1")),
        is_scheduled=settings.get("is_scheduled") == "true",
        computations={name: Computation(name, lines) for name, lines in reading.computations.items()},
        # XLA prints the entry last, so that is what it is if its mark was cut off.
        entry=reading.entry or next(reversed(reading.computations), ""),
        input_output_alias=_aliases(settings.get("input_output_alias", "")),
        skipped=tuple(reading.skipped),
        cut_in=reading.cut_in(),
    )


def _instructions(lines: Sequence[str], start: int) -> Iterator[tuple[int, str]]:
    """Yield lines and their numbers; a line that a Pallas kernel's metadata breaks is joined again."""
    number, whole = start + 1, ""
    for at, line in enumerate(lines[start:], start + 1):
        if line.startswith(('"', "}}")):
            whole += line
            continue
        yield number, whole
        number, whole = at, line
    yield number, whole


class _Reading:
    """What has been parsed of a module so far."""

    def __init__(self) -> None:
        tables = SourceTables()
        self._tables = tables
        self._reader = InstructionReader(tables)
        self._table = ""
        self._open: dict[str, Instruction] | None = None
        self.computations: dict[str, dict[str, Instruction]] = {}
        self.entry = ""
        self.skipped: list[tuple[int, str]] = []

    def take(self, number: int, line: str) -> None:
        """Parse the next line."""
        instructions = self._open
        if instructions is not None and line:
            if line[0] == "}":
                self._open = None
                return
            instruction = self._reader.read(line)
            if instruction is not None:
                instructions[instruction.name] = instruction
                return
        if not line or line.isspace() or self._is_table_line(line) or self._opens_computation(line):
            return
        self.skipped.append((number, line))

    def cut_in(self) -> str:
        """Return what a text that was cut short ends in or lacks; empty for a whole one."""
        if self._open is not None:
            return f"inside of computation {next(reversed(self.computations))}"
        return "" if self.entry else "before ENTRY, the computation that runs first"

    def _is_table_line(self, line: str) -> bool:
        if line in TABLES:
            self._table = line
            return True
        return self._open is None and bool(self._table) and self._tables.add(self._table, line)

    def _opens_computation(self, line: str) -> bool:
        header = _COMPUTATION.match(line)
        if header is None or not line.rstrip().endswith("{"):
            return False
        self._table = ""
        self._open = self.computations.setdefault(header[2], {})
        if header[1]:
            self.entry = header[2]
        return True


def _positive(number: str) -> int:
    return max(bounded_int(number) or 1, 1)


def _aliases(text: str) -> tuple[tuple[tuple[int, ...], int], ...]:
    return tuple(
        (tuple(int(index) for index in output.split(",") if index.strip()), int(parameter))
        for output, parameter in _ALIAS.findall(text)
    )


def _not_hlo(lines: list[str]) -> str:
    first = next((line.strip() for line in lines if line.strip()), "")
    start = f"it starts with {first[:60]!r}" if first else "it is empty"
    hint = " That is StableHLO, which no compiler has seen yet." if "module @" in first[:40] else ""
    return (
        f"This is not a compiled program: {start}, and no line of it starts with `HloModule`.{hint} "
        "Pass the text of `jax.jit(f).lower(...).compile().as_text()`."
    )


# Most instructions as a whole: mark, name, shape, opcode, operands and the rest. A result of several arrays, operands
# with parentheses or quotes of their own, and odd text are parsed bit by bit.
_PLAIN = re.compile(r'\s*+(ROOT )?%?([^\s=]++) = ([^\s(]\S*+) ([\w\-]++)\(([^()"]*+)\)(.*+)', re.DOTALL)
_START = re.compile(r"\s*+(ROOT )?%?([^\s=]++) = ")
_PERCENT_NAME = re.compile(r"%([^\s,(){}]++)")
_TYPE_OR_COMMENT = re.compile(r"/\*[^*]*+\*/|[a-z]\w*+\[[^\]]*+\](?:\{[^}]*+\})?+\s")
_BARE_NAME = re.compile(r"[^\s,(){}]++")
_VALUES = frozenset(("parameter", "constant"))
# The attributes that name computations, as `{%body.1, %body.2}` or `%body.1`.
_CALLING = (
    "calls",
    "to_apply",
    "body",
    "condition",
    "branch_computations",
    "true_computation",
    "false_computation",
    "called_computations",
)


_CALLED = re.compile(rf"[ ,]({'|'.join(_CALLING)})=(?:\{{([^{{}}]*+)\}}|%?([^\s,{{}}]++))")
_MARKS_OF_CALLS = tuple(f"{key}=" for key in _CALLING)
_QUOTED = re.compile(QUOTED)


class InstructionReader:
    """Parse instructions of one module; texts that repeat are parsed once."""

    def __init__(self, tables: SourceTables) -> None:
        self._frames = tables.frames
        self._shapes: dict[str, tuple[Shape, ...]] = {}
        self._ends: dict[str, _End] = {}

    def read(self, line: str) -> Instruction | None:
        """Parse the instruction of a line; None if it holds none."""
        plain = _PLAIN.match(line)
        parts = plain.groups() if plain else _parts_of(line)
        if parts is None:
            return None
        is_root, name, shape, opcode, inside, text = parts
        # A literal, or the number of a parameter, is no list of operands.
        is_value = opcode in _VALUES
        rest = self._ends.get(text)
        if rest is None:
            rest = self._ends[text] = self._end_of(text)
        shapes = self._shapes.get(shape)
        if shapes is None:
            shapes = self._shapes[shape] = read_shapes(shape)
        return Instruction(
            name=name,
            opcode=opcode,
            shapes=shapes,
            operands=() if is_value else _operand_names(inside),
            value=inside if is_value else "",
            attributes=rest.attributes,
            op_name=rest.op_name,
            frames=rest.frames,
            is_root=is_root is not None,
            calls=rest.calls,
        )

    def _end_of(self, text: str) -> _End:
        """Parse what follows the operands: in most lines nothing, or the metadata of many others."""
        attributes = Attributes(text)
        # A plain search comes first: few instructions call anything.
        may_call = any(map(text.__contains__, _MARKS_OF_CALLS))
        called = {key: names for key, *names in _CALLED.findall(_QUOTED.sub("", text))} if may_call else {}
        calls = [name for key in _CALLING if key in called for name in called_names("".join(called[key]))]
        metadata = text.find("metadata={")
        op_name, frames = read_metadata(text, metadata, self._frames) if metadata >= 0 else ("", ())
        return _End(attributes, op_name, frames, tuple(calls))


class _End(NamedTuple):
    """What follows the operands of an instruction."""

    attributes: Attributes
    op_name: str
    frames: Frames
    calls: tuple[str, ...]


_Parts: TypeAlias = "tuple[str | None, str, str, str, str, str]"


def _parts_of(line: str) -> _Parts | None:
    """Return the mark of a root, name, shape, opcode, operands, and what follows them; None if one is missing."""
    start = _START.match(line)
    if start is None:
        return None
    begin = start.end()
    end = closing(line, begin) + 1 if line.startswith("(", begin) else line.find(" ", begin)
    opening = line.find("(", end) if end > 0 else -1
    opcode, last = line[end:opening].strip(), closing(line, opening) if opening >= 0 else -1
    if last < 0 or not opcode:
        return None
    return start[1], start[2], line[begin:end], opcode, line[opening + 1 : last], line[last + 1 :]


def _operand_names(text: str) -> tuple[str, ...]:
    if "%" in text:
        return tuple(_PERCENT_NAME.findall(text))
    return tuple(_BARE_NAME.findall(_TYPE_OR_COMMENT.sub("", text))) if text else ()
