"""The pass over the pairs as machine code for this processor, made where a step is traced: `fast-cpu`.

A row at a time, `LANES` pairs at once: kernel and what the rule keeps are read, changed, summed where a spike arrives,
and written. Rows of neurons that spiked have code of their own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from outlay.brain.fused.pair_pass import BOOL, FLOAT, UINT32, PairPass, TracedRow
from outlay.brain.fused.row_code import LANES, SUFFIX, RowCode, Value
from outlay.brain.fused.row_equations import NoPasses, NotCompiled, View
from outlay.brain.synapses import num_lanes
from outlay.core.jax_machine_code import PIECES_OF_THREAD, NoMachineCode, at_most_threads, compile_function, num_threads

PAIRS_AT_ONCE, PAIRS_AT_ONCE_OF_NO_RULE = 8192, 16384
"""The least pairs of a thread's next piece: two microseconds. Asking another thread takes five (measured)."""


@dataclass(frozen=True)
class MachineCodePass(PairPass):
    """The pass in machine code."""

    def check_device(self, device: jax.Device) -> None:
        """Raise unless the device is a processor."""
        if device.platform != "cpu":
            raise NoPasses(f"it is compiled for {device.platform}")

    def compiled(
        self, results: list[jax.ShapeDtypeStruct], aliases: dict[int, int]
    ) -> Callable[..., Sequence[jax.Array]]:
        """A call of the function."""
        return jax.ffi.ffi_call(self.name, results, input_output_aliases=aliases)

    @property
    def piece(self) -> int:
        """How many rows a thread computes at once."""
        return -(-(PAIRS_AT_ONCE if self.quiet else PAIRS_AT_ONCE_OF_NO_RULE) // self.num_inputs)

    @property
    def num_tried(self) -> int:
        """So many that two threads share them."""
        return 2 * PIECES_OF_THREAD * self.piece

    def computed(self, *inputs: Any) -> tuple[list[np.ndarray], np.ndarray]:
        """What it computes, by one thread and by several."""
        with at_most_threads(1):
            alone = super().computed(*inputs)
        together = super().computed(*inputs)
        if not all(map(np.array_equal, *map(jax.tree.leaves, (alone, together)))):
            raise NotCompiled(f"in its self-test {num_threads.value} threads compute something else than one")
        return together

    @functools.cached_property
    def name(self) -> str:
        """The compiled function's name."""
        num_rows, words, traced = len(self.rows), self.words_at, self.traced
        consts = words + 4
        loops = [_Loop(self, "first", None, [])]
        for row, name in zip(traced, ("quiet", "spiking"), strict=False):
            loops.append(_Loop(self, name, row, [f"%a{consts + k}" for k in range(len(row.consts))]))
            consts += len(row.consts)
        choose = "  br label %first_row"
        if traced:
            choose = f"""
  %pending = load i8, ptr %a{words + 3}
  %is_pending = icmp ne i8 %pending, 0
  %spiked_at = getelementptr i8, ptr %a{words + 2}, i64 %i
  %spiked = load i8, ptr %spiked_at
  %is_spiked = icmp ne i8 %spiked, 0
  br i1 %is_pending, label %changed_row, label %first_row
changed_row:
  br i1 %is_spiked, label %spiking_row, label %quiet_row"""
        num_sums = num_lanes(self.num_inputs) // LANES
        body = f"""
  %sums = alloca <{LANES} x float>, i64 {num_sums}
  br label %rows
rows:
  %i = phi i64 [%first, %start], [%next_i, %sum]
  %more = icmp ult i64 %i, %last
  br i1 %more, label %row, label %end
row:
  %neuron = trunc i64 %i to i32
{_zero_sums(num_sums)}
{choose}
{"".join(loop.code() for loop in loops)}
sum:
{_total(num_sums)}
  %current_at = getelementptr float, ptr %r{num_rows if traced else 0}, i64 %i
  store float %total, ptr %current_at
  %next_i = add i64 %i, 1
  br label %rows
end:"""
        try:
            return compile_function(body, _declarations(), consts, (num_rows if traced else 0) + 1, self.piece)
        except NoMachineCode as reason:
            raise NoPasses(str(reason)) from reason


@dataclass(frozen=True)
class _Loop:
    """The loop over the pairs of one kind of row.

    Attributes:
        whole: the pass.
        name: what its labels begin with.
        row: the equations; None where nothing changes.
        consts: names of the arrays that they close over.
    """

    whole: MachineCodePass
    name: str
    row: TracedRow | None
    consts: list[str]

    def code(self) -> str:
        """All whole vectors of the row, then one with a mask for what is left."""
        name, size = self.name, self.whole.num_inputs
        main, rest = RowCode(f"{name}_", size), RowCode(f"{name}_rest_", size, _first_lanes(size % LANES))
        whole = size - size % LANES
        for part in (main, rest):
            self._vector(part)
        if not size % LANES:
            rest = RowCode(rest.prefix, size)
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
        """What is done for the pairs of one vector."""
        size, rows, neuron = self.whole.num_inputs, self.whole.rows, Value("%neuron", UINT32, False)
        views = [View.of_row(f"%a{k}", dtype, size, neuron) for k, dtype in enumerate(rows)]
        words = code.load(View.of(f"%a{self.whole.words_at}", UINT32, (size,)))
        sign = code.load(View.of(f"%a{self.whole.words_at + 1}", FLOAT, (size,)))
        inputs: list[Value | View] = [neuron, *views]
        if self.whole.delays is not None:
            delays = code.load(View.of_row(f"%a{len(rows)}", self.whole.delays, size, neuron))
            shifted = code.emit(f"lshr {words.type} {words.name}, {delays.name}", True)
            words = Value(shifted, UINT32, True)
            inputs.append(delays)
        kernel = code.number(views[0])
        if self.row is not None:
            inputs.insert(1 + len(rows), _bit(code, words, 2))
            after = code.equations(self.row.jaxpr, self.row.views(list(self.consts)), inputs)
            for k, (row, view) in enumerate(zip(after, views, strict=True)):
                code.store(code.number(row), View.of_row(f"%r{k}", view.dtype, size, neuron))
            kernel = code.vector(code.number(after[0]))
        signed = code.emit(f"fmul {kernel.type} {kernel.name}, {sign.name}", True)
        brought = code.emit(
            f"select <{LANES} x i1> {_bit(code, words, 1).name}, {kernel.type} {signed}, {kernel.type} zeroinitializer",
            True,
        )
        block = code.emit(f"lshr i64 {code.column}, {LANES.bit_length() - 1}", True)
        lane = code.emit(f"and i64 {block}, {num_lanes(size) // LANES - 1}", True)
        at = code.emit(f"getelementptr <{LANES} x float>, ptr %sums, i64 {lane}", True)
        before = code.emit(f"load {kernel.type}, ptr {at}", True)
        total = code.emit(f"fadd {kernel.type} {before}, {brought}", True)
        code.lines.append(f"store {kernel.type} {total}, ptr {at}")


def _bit(code: RowCode, words: Value, bit: int) -> Value:
    """Where a bit of the words is set."""
    mask = f"<{', '.join([f'i32 {bit}'] * LANES)}>"
    chosen = code.emit(f"and {words.type} {words.name}, {mask}", True)
    return Value(code.emit(f"icmp ne {words.type} {chosen}, zeroinitializer", True), BOOL, True)


def _first_lanes(num: int) -> str:
    return f"<{', '.join(f'i1 {int(lane < num)}' for lane in range(LANES))}>"


def _zero_sums(num: int) -> str:
    return "\n".join(
        f"  %sum_{k}_at = getelementptr <{LANES} x float>, ptr %sums, i64 {k}\n"
        f"  store <{LANES} x float> zeroinitializer, ptr %sum_{k}_at"
        for k in range(num)
    )


def _total(num: int) -> str:
    """The sum of all lanes, added in halves as `sum_rows` does."""
    type_, names = f"<{LANES} x float>", [f"%part_{k}" for k in range(num)]
    lines = [f"  {name} = load {type_}, ptr %sum_{k}_at" for k, name in enumerate(names)]
    while len(names) > 1:
        half = len(names) // 2
        both = list(zip(names[:half], names[half:], strict=True))
        names = [f"{low}_{half}" for low, _ in both]
        lines += [f"  {name} = fadd {type_} {low}, {high}" for name, (low, high) in zip(names, both, strict=True)]
    whole, half = names[0], LANES // 2
    while half:
        order = ", ".join(f"i32 {lane + half if lane < half else lane}" for lane in range(LANES))
        lines += [
            f"  %swapped_{half} = shufflevector {type_} {whole}, {type_} poison, <{LANES} x i32> <{order}>",
            f"  %halves_{half} = fadd {type_} {whole}, %swapped_{half}",
        ]
        whole, half = f"%halves_{half}", half // 2
    return "\n".join([*lines, f"  %total = extractelement {type_} {whole}, i32 0"])


def _declarations() -> str:
    """Of loads and stores of some lanes."""
    lines = []
    for kind, suffix in SUFFIX.items():
        type_, mask = f"<{LANES} x {kind}>", f"<{LANES} x i1>"
        lines += [
            f"declare {type_} @llvm.masked.load.v{LANES}{suffix}.p0(ptr, i32, {mask}, {type_})",
            f"declare void @llvm.masked.store.v{LANES}{suffix}.p0({type_}, ptr, i32, {mask})",
        ]
    return "\n".join(lines)
