"""Optimized HLO text, read into an `HloModule`."""

from __future__ import annotations

import re

from outlay.core.errors import ExplainError
from outlay.report.hlo.attributes import read_attributes
from outlay.report.hlo.frames import TABLES, SourceTables
from outlay.report.hlo.instruction import InstructionReader
from outlay.report.hlo.module import Computation, HloModule, Instruction

# `ENTRY %main.5 (x: f32[8]) -> f32[8] {`; text meant for reading leaves out the percent sign and the types.
_COMPUTATION = re.compile(r"(ENTRY )?+%?([\w.\-]++) (?=[({])")
# Numbers have bounded lengths everywhere: Python refuses to read very long ones.
_ALIAS = re.compile(r"\{([\d,\s]{0,99})\}:\s*+\(\s*+(\d{1,9})")


def parse_hlo(text: str) -> HloModule:
    """Reads what `compiled.as_text()` gives, of CPU, GPU and TPU compilers, into values.

    A line that cannot be read is put into `skipped`; all others are read all the same.

    Args:
        text: the module, as printed by XLA.

    Raises:
        ExplainError: it is no HLO at all.

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
    for number, line in enumerate(lines[head + 1 :], head + 2):
        reading.take(number, line)
    name, _, attributes = lines[head].removeprefix("HloModule ").partition(",")
    settings = read_attributes(attributes)
    return HloModule(
        name=name.strip(),
        num_partitions=_positive(settings.get("num_partitions", "1")),
        num_replicas=_positive(settings.get("replica_count", "1")),
        is_scheduled=settings.get("is_scheduled") == "true",
        computations={name: Computation(name, lines) for name, lines in reading.computations.items()},
        entry=reading.entry or next(reversed(reading.computations), ""),
        input_output_alias=_aliases(settings.get("input_output_alias", "")),
        skipped=tuple(reading.skipped),
    )


class _Reading:
    """What was read so far."""

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
        """Reads the next line."""
        if not line or line.isspace():
            return
        instructions = self._open
        if instructions is not None:
            if line[0] == "}":
                self._open = None
                return
            instruction = self._reader.read(line)
            if instruction is not None:
                instructions[instruction.name] = instruction
                return
        if self._is_table_line(line) or self._opens_computation(line):
            return
        self.skipped.append((number, line))

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
    return max(int(number), 1) if number.isdecimal() and len(number) < 10 else 1


def _aliases(text: str) -> tuple[tuple[tuple[int, ...], int], ...]:
    return tuple(
        (tuple(int(index) for index in output.split(",") if index.strip()), int(parameter))
        for output, parameter in _ALIAS.findall(text)
    )


def _not_hlo(lines: list[str]) -> str:
    first = next((line.strip() for line in lines if line.strip()), "")
    found = f"it starts with {first[:60]!r}" if first else "it is empty"
    hint = " That is StableHLO, which no compiler has seen yet." if "module @" in first[:40] else ""
    return (
        f"This is no compiled program: {found}, and no line of it starts with `HloModule`.{hint} "
        "Pass the text that `jax.jit(f).lower(...).compile().as_text()` gives."
    )
