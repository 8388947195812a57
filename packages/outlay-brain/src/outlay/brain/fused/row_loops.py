"""Loops over the pairs of a row, a vector of them at a time, in the language of LLVM."""

from __future__ import annotations

from dataclasses import dataclass

from outlay.brain.fused.pair_pass import BOOL, FLOAT, UINT32, PairPass
from outlay.brain.fused.row_code import LANES, RowCode, Value, in_lanes
from outlay.brain.fused.row_equations import TracedRow, View
from outlay.brain.synapses import num_lanes

NEURON = Value("%neuron", UINT32, False)
"""The number of the post neuron."""


@dataclass(frozen=True)
class RowLoop:
    """The loop over the pairs of one kind of row.

    Attributes:
        whole: the pass.
        name: what its labels begin with.
        row: the equations; None where nothing changes.
        consts: names of the arrays that they close over.
    """

    whole: PairPass
    name: str
    row: TracedRow | None
    consts: list[str]

    def code(self) -> str:
        """Return code of all whole vectors of the row, then of one with a mask for what is left."""
        name, size = self.name, self.whole.num_inputs
        main, rest = RowCode(f"{name}_", size), RowCode(f"{name}_rest_", size, first_lanes(size % LANES))
        whole = size - size % LANES
        self._vector(main)
        if size % LANES:
            self._vector(rest)
        return "\n".join(
            [
                f"{name}_row:",
                *main.before,
                *rest.before,
                f"  br label %{name}_head",
                f"{name}_head:",
                f"  {main.column} = phi i64 [0, %{name}_row], [{main.column}_next, %{name}_body]",
                f"  {main.column}_more = icmp ult i64 {main.column}, {whole}",
                f"  br i1 {main.column}_more, label %{name}_body, label %{name}_rest",
                f"{name}_body:",
                *main.lines,
                f"  {main.column}_next = add i64 {main.column}, {LANES}",
                f"  br label %{name}_head",
                f"{name}_rest:",
                f"  {rest.column} = add i64 0, {whole}",
                *rest.lines,
                "  br label %sum\n",
            ]
        )

    def _vector(self, code: RowCode) -> None:
        """Add what is done for the pairs of one vector."""
        words, delays = self.arriving(code)
        self.add_current(code, words, self.changed(code, words, delays, self.views(code)))

    def views(self, code: RowCode) -> list[Value | View]:
        """Return the kernel and what the rule keeps, before the step."""
        size, rows = self.whole.num_inputs, self.whole.rows
        return [View.of_row(f"%a{k}", dtype, size, NEURON) for k, dtype in enumerate(rows)]

    def arriving(self, code: RowCode) -> tuple[Value, Value | None]:
        """Return words, whose bit 0 says where a spike arrives, and bit 1 where one did a step before; and delays."""
        size, at = self.whole.num_inputs, self.whole.words_at
        words = code.load(View.of(f"%a{at}", UINT32, (size,)))
        if self.whole.delays is None:
            return words, None
        delays = code.load(View.of_row(f"%a{len(self.whole.rows)}", self.whole.delays, size, NEURON))
        return Value(code.emit(f"lshr {words.type} {words.name}, {delays.name}", True), UINT32, True), delays

    def equations(
        self, code: RowCode, arrived: Value, delays: Value | None, rows: list[Value | View]
    ) -> list[Value | View]:
        """Return the rows after a step."""
        assert self.row is not None
        inputs = [NEURON, *rows, arrived, *([] if delays is None else [delays])]
        return code.equations(self.row.jaxpr, self.row.views(list(self.consts)), inputs)

    def changed(self, code: RowCode, words: Value, delays: Value | None, rows: list[Value | View]) -> Value:
        """Make the last step's change, and return the kernel after it."""
        if self.row is None:
            return code.number(rows[0])
        after = self.equations(code, bit(code, words, 2), delays, rows)
        for k, (row, dtype) in enumerate(zip(after, self.whole.rows, strict=True)):
            code.store(code.number(row), View.of_row(f"%r{k}", dtype, self.whole.num_inputs, NEURON))
        return code.vector(code.number(after[0]))

    def add_current(self, code: RowCode, words: Value, kernel: Value) -> None:
        """Add up what the spikes that arrive bring."""
        size = self.whole.num_inputs
        sign = code.load(View.of(f"%a{self.whole.words_at + 1}", FLOAT, (size,)))
        signed = code.emit(f"fmul {kernel.type} {kernel.name}, {sign.name}", True)
        arrives = bit(code, words, 1).name
        brought = code.emit(
            f"select <{LANES} x i1> {arrives}, {kernel.type} {signed}, {kernel.type} zeroinitializer", True
        )
        # The lanes of `sum_rows`, so that a sum has the bits of plain JAX.
        block = code.emit(f"lshr i64 {code.column}, {LANES.bit_length() - 1}", True)
        lane = code.emit(f"and i64 {block}, {num_lanes(size) // LANES - 1}", True)
        at = code.emit(f"getelementptr <{LANES} x float>, ptr %sums, i64 {lane}", True)
        before = code.emit(f"load {kernel.type}, ptr {at}", True)
        total = code.emit(f"fadd {kernel.type} {before}, {brought}", True)
        code.lines.append(f"store {kernel.type} {total}, ptr {at}")


def bit(code: RowCode, words: Value, bit: int) -> Value:
    """Return where a bit of the words is set."""
    chosen = code.emit(f"and {words.type} {words.name}, {in_lanes('i32', bit)}", True)
    return Value(code.emit(f"icmp ne {words.type} {chosen}, zeroinitializer", True), BOOL, True)


def first_lanes(num: int) -> str:
    """Return a mask of so many lanes."""
    return f"<{', '.join(f'i1 {int(lane < num)}' for lane in range(LANES))}>"
