"""Equations of a row of pairs, traced by JAX, as vector code in the language of LLVM.

A row is an array with one entry a pre neuron. What is the same for a whole row (the number of the post neuron, what it
has, constants) is computed before the row, what differs is computed for `LANES` pairs at a time.
"""

from __future__ import annotations

import functools
import math
import struct
from dataclasses import dataclass, field, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from outlay.brain.fused.row_equations import NotCompiled, RowEquations, View
from outlay.brain.rounding import is_narrow

LANES = 16
"""Pairs of one vector: the 512 bits of the widest registers. On narrower ones LLVM takes several."""

MEMORY = {"float32": "float", "float16": "half", "bfloat16": "i16", "bool": "i8", "uint8": "i8", "uint16": "i16"} | (
    dict.fromkeys(("uint32", "int32"), "i32")
)
"""What an entry of each dtype is in memory."""
ARITHMETIC = {"mul": "fmul", "add": "fadd", "sub": "fsub", "div": "fdiv"}
ORDERED = {"max": "ogt", "min": "olt"}


def of_lanes(kind: str, is_vector: bool = True) -> str:
    """Return the type of a number, or of one for each lane."""
    return f"<{LANES} x {kind}>" if is_vector else kind


def in_lanes(kind: str, name: Any, is_vector: bool = True) -> str:
    """Return a constant, or a vector of it."""
    return f"<{', '.join([f'{kind} {name}'] * LANES)}>" if is_vector else str(name)


@dataclass(frozen=True)
class Value:
    """A number, or one for each lane.

    Attributes:
        name: what it is called in the code.
        dtype: of its array; what is computed is rounded to it.
        is_vector: whether each lane has its own.
        known: the number itself, of a constant.
    """

    name: str
    dtype: np.dtype
    is_vector: bool
    known: float | None = None

    @property
    def kind(self) -> str:
        """What it is computed as: `float`, `i32` or `i1`."""
        if self.dtype == np.bool_:
            return "i1"
        return "float" if jnp.issubdtype(self.dtype, jnp.floating) else "i32"

    @property
    def type(self) -> str:
        """Its type in the code."""
        return of_lanes(self.kind, self.is_vector)


@dataclass
class RowCode(RowEquations[Value]):
    """Lines of code: those before a row, and those for the vector of pairs at `%PREFIXj` in it.

    Attributes:
        prefix: of all names in it.
        size: entries of a row.
        mask: the name of a mask of the lanes that are in the row; empty where all are.
        rounds_each: whether a product and a sum are rounded one by one, as a narrow Brain's are (`brain.rounding`).
    """

    prefix: str
    size: int
    mask: str = ""
    rounds_each: bool = False
    before: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    loaded: dict[View, Value] = field(default_factory=dict)

    @property
    def column(self) -> str:
        """The number of the first pair of the vector."""
        return f"%{self.prefix}j"

    def emit(self, code: str, is_vector: bool) -> str:
        """Add a line that gives a new name, which is returned."""
        name = f"%{self.prefix}{len(self.before) + len(self.lines)}"
        (self.lines if is_vector else self.before).append(f"{name} = {code}")
        return name

    def equations(self, jaxpr: Any, consts: list[View], inputs: list[Value | View]) -> list[Value | View]:
        """Compute the results of a jaxpr; of narrow rows each operation rounds."""
        self.rounds_each = self.rounds_each or any(is_narrow(row.aval.dtype) for row in jaxpr.invars)
        return super().equations(jaxpr, consts, inputs)

    def operate(self, name: str, operands: list[Value], dtype: Any) -> Value:
        """Add an operation on numbers."""
        is_vector = any(operand.is_vector for operand in operands)
        if is_vector:
            operands = [self.vector(operand) for operand in operands]
        a, b = operands[0], operands[-1]
        both = f"{a.type} {a.name}, {b.name}"
        if name == "convert_element_type":
            return self.convert(a, jnp.dtype(dtype))
        if name == "div" and b.known and jnp.dtype(dtype) == np.float32:
            # XLA does the same, so that the bits are those of plain JAX.
            return self.operate("mul", [a, self.constant(1 / b.known, dtype)], dtype)
        if name in ARITHMETIC and a.kind == "float":
            # `contract` lets LLVM round a product and a sum as one, as XLA lets it in what it compiles.
            code = f"{ARITHMETIC[name]}{'' if self.rounds_each else ' contract'} {both}"
        elif name in ("add", "sub", "and") and a.kind != "float":
            code = f"{name} {both}"
        elif name in ("eq", "ne") and a.kind != "float":
            code = f"icmp {name} {both}"
        elif name in ORDERED and a.kind == "float":
            # What is not a number stays so: the comparison is false.
            beyond = self.emit(f"fcmp {ORDERED[name]} {a.type} {b.name}, {a.name}", is_vector)
            code = f"select {of_lanes('i1', is_vector)} {beyond}, {b.type} {b.name}, {a.type} {a.name}"
        elif name == "select_n" and a.kind == "i1" and len(operands) == 3:
            code = f"select {a.type} {a.name}, {b.type} {b.name}, {operands[1].type} {operands[1].name}"
        else:
            raise NotCompiled(f"{name} of {', '.join(str(operand.dtype) for operand in operands)}")
        return self.rounded(Value(self.emit(code, is_vector), jnp.dtype(dtype), is_vector))

    def constant(self, value: Any, dtype: Any) -> Value:
        """Return a constant."""
        dtype = jnp.dtype(dtype)
        exact = float(np.asarray(value, dtype).astype(np.float32))
        if not jnp.issubdtype(dtype, jnp.floating):
            return Value(str(int(value)), dtype, False, exact)
        return Value(f"0x{struct.unpack('>Q', struct.pack('>d', exact))[0]:016X}", dtype, False, exact)

    def vector(self, value: Value) -> Value:
        """Return the same number in every lane."""
        if value.is_vector:
            return value
        if value.known is not None:
            return replace(value, name=in_lanes(value.kind, value.name), is_vector=True)
        return replace(value, name=self.splat(value.kind, value.name), is_vector=True)

    def splat(self, kind: str, name: str) -> str:
        """Return the name of a vector of the same number."""
        type_, zeros = of_lanes(kind), f"{of_lanes('i32')} zeroinitializer"
        one = self.emit(f"insertelement {type_} poison, {kind} {name}, i32 0", False)
        return self.emit(f"shufflevector {type_} {one}, {type_} poison, {zeros}", False)

    def load(self, view: View) -> Value:
        """Add code that loads one number, or those of the pairs, and makes of them what is computed with; once."""
        if view not in self.loaded:
            self.loaded[view] = self._load(view)
        return self.loaded[view]

    def _load(self, view: View) -> Value:
        is_vector, dtype = bool(view.dims), view.dtype
        kind = MEMORY.get(str(dtype))
        if kind is None:
            raise NotCompiled(f"numbers of {dtype}")
        place = self.place(view)
        at = self.emit(f"getelementptr {kind}, ptr {view.array}, i64 {place}", is_vector)
        type_ = of_lanes(kind, is_vector)
        if is_vector and self.mask:
            suffix = f"v{LANES}{SUFFIX[kind]}"
            mask = f"<{LANES} x i1> {self.mask}"
            of = f"ptr {at}, i32 {SIZE[kind]}, {mask}, {type_} zeroinitializer"
            bits = self.emit(f"call {type_} @llvm.masked.load.{suffix}.p0({of})", True)
        else:
            bits = self.emit(f"load {type_}, ptr {at}, align {SIZE[kind]}", is_vector)
        return Value(self.widened(bits, dtype, is_vector), dtype, is_vector)

    def place(self, view: View) -> str:
        """Return the position of a view's entry in its array; of a row, that of the first lane's."""
        place = "0"
        for dim, start in enumerate(view.starts):
            stride = math.prod(view.whole[dim + 1 :])
            if isinstance(start, Value):
                wide = self.emit(f"zext i32 {start.name} to i64", False)
                moved = self.emit(f"mul i64 {wide}, {stride}", False)
                place = self.emit(f"add i64 {place}, {moved}", False)
            elif start:
                place = self.emit(f"add i64 {place}, {start * stride}", False)
        return self.emit(f"add i64 {place}, {self.column}", True) if view.dims else place

    def widened(self, bits: str, dtype: np.dtype, is_vector: bool) -> str:
        """Return what is computed with, from what is in memory."""
        of = functools.partial(of_lanes, is_vector=is_vector)
        if dtype == np.bool_:
            return self.emit(f"icmp ne {of('i8')} {bits}, {'zeroinitializer' if is_vector else '0'}", is_vector)
        if dtype == jnp.bfloat16:
            wide = self.emit(f"zext {of('i16')} {bits} to {of('i32')}", is_vector)
            high = self.emit(f"shl {of('i32')} {wide}, {in_lanes('i32', 16, is_vector)}", is_vector)
            return self.emit(f"bitcast {of('i32')} {high} to {of('float')}", is_vector)
        if dtype == np.float16:
            return self.emit(f"fpext {of('half')} {bits} to {of('float')}", is_vector)
        if dtype.itemsize < 4:
            return self.emit(f"zext {of(MEMORY[str(dtype)])} {bits} to {of('i32')}", is_vector)
        return bits

    def narrowed(self, value: Value) -> str:
        """Return what is stored, from what is computed with: rounded to the nearest, in a tie to even."""
        v, of = value.is_vector, functools.partial(of_lanes, is_vector=value.is_vector)
        if value.dtype == np.float16:
            return self.emit(f"fptrunc {of('float')} {value.name} to {of('half')}", v)
        if value.dtype != jnp.bfloat16:
            return value.name
        bits = self.emit(f"bitcast {of('float')} {value.name} to {of('i32')}", v)
        high = self.emit(f"lshr {of('i32')} {bits}, {in_lanes('i32', 16, v)}", v)
        odd = self.emit(f"and {of('i32')} {high}, {in_lanes('i32', 1, v)}", v)
        half = self.emit(f"add {of('i32')} {odd}, {in_lanes('i32', 0x7FFF, v)}", v)
        up = self.emit(f"add {of('i32')} {bits}, {half}", v)
        nearest = self.emit(f"lshr {of('i32')} {up}, {in_lanes('i32', 16, v)}", v)
        # Rounding up would make of some that are no numbers infinities.
        is_none = self.emit(f"fcmp uno {of('float')} {value.name}, {value.name}", v)
        quiet = self.emit(f"or {of('i32')} {high}, {in_lanes('i32', 0x40, v)}", v)
        chosen = self.emit(f"select {of('i1')} {is_none}, {of('i32')} {quiet}, {of('i32')} {nearest}", v)
        return self.emit(f"trunc {of('i32')} {chosen} to {of('i16')}", v)

    def rounded(self, value: Value) -> Value:
        """Round a number to its dtype."""
        if value.kind != "float" or value.dtype == np.float32:
            return value
        return replace(value, name=self.widened(self.narrowed(value), value.dtype, value.is_vector))

    def convert(self, value: Value, dtype: np.dtype) -> Value:
        """Convert a number to another dtype."""
        if value.known is not None:
            return self.constant(value.known, dtype)
        converted = replace(value, dtype=dtype)
        if converted.kind != value.kind:
            raise NotCompiled(f"conversion of {value.dtype} to {dtype}")
        return converted if dtype.itemsize >= value.dtype.itemsize else self.rounded(converted)

    def store(self, value: Value, view: View) -> None:
        """Add code that stores a row's pairs."""
        kind = MEMORY[str(view.dtype)]
        bits, type_ = self.narrowed(self.vector(value)), f"<{LANES} x {kind}>"
        place = self.place(view)
        at = self.emit(f"getelementptr {kind}, ptr {view.array}, i64 {place}", True)
        if self.mask and self.size % LANES == 1:
            # Not a masked store: of one lane LLVM 22 writes the 32 bits that it is narrowed from, with AVX-512.
            one = self.emit(f"extractelement {type_} {bits}, i32 0", True)
            self.lines.append(f"store {kind} {one}, ptr {at}, align {SIZE[kind]}")
        elif self.mask:
            mask = f"<{LANES} x i1> {self.mask}"
            call = f"@llvm.masked.store.v{LANES}{SUFFIX[kind]}.p0({type_} {bits}, ptr {at}, i32 {SIZE[kind]}, {mask})"
            self.lines.append(f"call void {call}")
        else:
            self.lines.append(f"store {type_} {bits}, ptr {at}, align {SIZE[kind]}")


SIZE = {"float": 4, "half": 2, "i8": 1, "i16": 2, "i32": 4}
SUFFIX = {"float": "f32", "half": "f16", "i8": "i8", "i16": "i16", "i32": "i32"}
