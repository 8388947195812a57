"""A compiled program with its floats in float64: what it means, apart from how its types round.

What reads, spells or makes the bits of a float keeps its type, between conversions. Floats of 8 bits stay as they are:
their rounding is what a program with them is about.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from outlay.analysis.hlo.hlo_module import Computation, HloModule, Instruction, Shape

_WIDE = {"f16": "f64", "bf16": "f64", "f32": "f64", "c64": "c128"}
_OF_BITS = ("bitcast", "bitcast-convert")


def widen_floats(module: HloModule) -> HloModule:
    """Return a program of the same operations on wider floats.

    Examples:
        >>> from outlay.analysis.hlo.parse import parse_hlo
        >>> module = parse_hlo('''HloModule jit_f
        ...
        ... ENTRY %main (x: f32[4]) -> bf16[4] {
        ...   %x = f32[4]{0} parameter(0)
        ...   %two = f32[] constant(2)
        ...   %all = f32[4]{0} broadcast(%two), dimensions={}
        ...   %y = f32[4]{0} multiply(%x, %all)
        ...   ROOT %z = bf16[4]{0} convert(%y)
        ... }''')
        >>> for name, one in widen_floats(module).computations["main"].instructions.items():
        ...     print(one.opcode, *(shape.dtype for shape in one.shapes), *one.operands)
        parameter f64
        constant f32
        convert f64 two.as_written
        broadcast f64 two
        multiply f64 x all
        convert f64 y
    """
    computations = {name: _computation(one) for name, one in module.computations.items()}
    return dataclasses.replace(module, computations=computations)


def _computation(narrow: Computation) -> Computation:
    instructions = {
        one.name: one for each in narrow.instructions.values() for one in _instructions(each, narrow.instructions)
    }
    return Computation(narrow.name, instructions)


def _instructions(one: Instruction, others: Mapping[str, Instruction]) -> Iterator[Instruction]:
    """Yield what stands in the place of an instruction; the last has its name."""
    wide = tuple(map(_wide, one.shapes))
    if one.opcode == "reduce-precision":
        yield dataclasses.replace(one, opcode="copy", shapes=wide)
    elif one.opcode == "constant" and wide != one.shapes:
        yield dataclasses.replace(one, name=f"{one.name}.as_written", is_root=False)
        yield _convert(one.name, f"{one.name}.as_written", wide, is_root=one.is_root)
    elif one.opcode in _OF_BITS and others[one.operands[0]].shapes[0].dtype != one.shapes[0].dtype:
        # In their own types, and each by a name of its own: several may read one array.
        operand = others[one.operands[0]]
        yield _convert(f"{one.name}.narrow", operand.name, operand.shapes, is_root=False)
        yield dataclasses.replace(one, name=f"{one.name}.as_written", operands=(f"{one.name}.narrow",), is_root=False)
        yield _convert(one.name, f"{one.name}.as_written", wide, is_root=one.is_root)
    else:
        yield one if wide == one.shapes else dataclasses.replace(one, shapes=wide)


def _wide(shape: Shape) -> Shape:
    return dataclasses.replace(shape, dtype=_WIDE[shape.dtype]) if shape.dtype in _WIDE else shape


def _convert(name: str, operand: str, shapes: tuple[Shape, ...], *, is_root: bool) -> Instruction:
    return Instruction(
        name=name,
        opcode="convert",
        shapes=shapes,
        operands=(operand,),
        value="",
        attributes={},
        op_name="",
        frames=(),
        is_root=is_root,
        calls=(),
    )
