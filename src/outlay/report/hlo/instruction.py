"""One line of a computation, read."""

from __future__ import annotations

import re

from outlay.report.hlo.attributes import Attributes, closing
from outlay.report.hlo.frames import SourceTables, read_metadata
from outlay.report.hlo.module import Instruction, Shape
from outlay.report.hlo.shapes import read_shapes

_START = re.compile(r"\s*+(ROOT )?%?([^\s=]++) = ")
_PERCENT_NAME = re.compile(r"%([^\s,(){}]++)")
_TYPE_OR_COMMENT = re.compile(r"/\*[^*]*+\*/|[a-z]\w*+\[[^\]]*+\](?:\{[^}]*+\})?+\s")
_BARE_NAME = re.compile(r"[^\s,(){}]++")
_VALUES = frozenset(("parameter", "constant"))


class InstructionReader:
    """Reads instructions of one module; what repeats from line to line is read once."""

    def __init__(self, tables: SourceTables) -> None:
        self._frames = tables.frames
        self._shapes: dict[str, tuple[Shape, ...]] = {}

    def read(self, line: str) -> Instruction | None:
        """The instruction of a line; None where it is none."""
        start = _START.match(line)
        if start is None:
            return None
        shape_start = start.end()
        is_tuple = line.startswith("(", shape_start)
        shape_end = closing(line, shape_start) + 1 if is_tuple else line.find(" ", shape_start)
        if shape_end <= 0:
            return None
        opening = line.find("(", shape_end)
        opcode = line[shape_end:opening].strip()
        end = _operands_end(line, opening)
        if opening < 0 or end < 0 or not opcode:
            return None
        inside, is_value = line[opening + 1 : end], opcode in _VALUES
        metadata = line.find("metadata={", end)
        op_name, frames = read_metadata(line, metadata, self._frames) if metadata > 0 else ("", ())
        return Instruction(
            name=start[2],
            opcode=opcode,
            shapes=self._shapes_of(line[shape_start:shape_end]),
            operands=() if is_value else _operand_names(inside),
            value=inside if is_value else "",
            attributes=Attributes(line[end + 1 :]),
            op_name=op_name,
            frames=frames,
            is_root=start[1] is not None,
        )

    def _shapes_of(self, text: str) -> tuple[Shape, ...]:
        shapes = self._shapes.get(text)
        if shapes is None:
            shapes = self._shapes[text] = read_shapes(text)
        return shapes


def _operands_end(line: str, opening: int) -> int:
    """Where the operands end."""
    if opening < 0:
        return -1
    end = line.find(")", opening)
    # Printed types, complex constants and quotes may hold parentheses of their own.
    if line.find("(", opening + 1, end) < 0 and line.find('"', opening + 1, end) < 0:
        return end
    return closing(line, opening)


def _operand_names(text: str) -> tuple[str, ...]:
    if "%" in text:
        return tuple(_PERCENT_NAME.findall(text))
    return tuple(_BARE_NAME.findall(_TYPE_OR_COMMENT.sub("", text))) if text else ()
