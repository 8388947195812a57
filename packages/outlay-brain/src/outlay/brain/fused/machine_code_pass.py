"""The pass over the pairs as machine code for this processor, made where a step is traced: `fast-cpu`.

A row at a time, `LANES` pairs at once: kernel and what the rule keeps are read, changed, summed where a spike arrives,
and written. Rows of neurons that spiked have code of their own.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import jax
import numpy as np

from outlay.brain.fused.jax_machine_code import (
    PIECES_OF_THREAD,
    NoMachineCode,
    RowFunction,
    at_most_threads,
    compile_call,
    compile_rows,
    num_threads,
)
from outlay.brain.fused.pair_pass import PairPass, PassCall
from outlay.brain.fused.row_code import LANES, SUFFIX
from outlay.brain.fused.row_equations import NoPasses, NotCompiled
from outlay.brain.fused.row_loops import RowLoop
from outlay.brain.fused.sparse_loops import begin_sparse, choose_sparse, sparse_loop
from outlay.brain.fused.sparse_steps import SparseSteps, Unreached, unreached
from outlay.brain.synapses import num_lanes

PAIRS_AT_ONCE, PAIRS_AT_ONCE_OF_NO_RULE = 8192, 16384
"""The least pairs of a thread's next piece: two microseconds. Asking another thread takes five (measured)."""


@dataclass(frozen=True)
class MachineCodePass(PairPass):
    """The pass in machine code."""

    def check_device(self, device: jax.Device) -> None:
        """Raise unless the device is a processor."""
        if device.platform != "cpu":
            raise NoPasses(f"it is compiled for {device.platform}")

    @classmethod
    def compute_all(
        cls, passes: Sequence[Self], calls: Sequence[PassCall]
    ) -> list[tuple[list[jax.Array], jax.Array, list[jax.Array]]]:
        """Compute several passes in one call, in which threads share the rows of all."""
        inputs, results, aliases = [], [], {}
        for call in calls:
            aliases |= {len(inputs) + k: len(results) + place for k, place in call.aliases.items()}
            inputs += call.inputs
            results += call.results
        try:
            name = compile_call([pairs.function for pairs in passes])
        except NoMachineCode as reason:
            raise NoPasses(str(reason)) from reason
        left = iter(jax.ffi.ffi_call(name, results, input_output_aliases=aliases)(*inputs))
        return [call.named([next(left) for _ in call.results]) for call in calls]

    @functools.cached_property
    def sparse(self) -> SparseSteps | None:
        """How it leaves out vectors of pairs; None where the rule may change any pair in any step."""
        alone = unreached(self.quiet, self.spiking, self.rows) if self.quiet and self.spiking else Unreached()
        return SparseSteps(alone, max(1, self.num_inputs // LANES)) if alone else None

    @property
    def piece(self) -> int:
        """How many rows a thread computes at once."""
        return -(-(PAIRS_AT_ONCE if self.quiet else PAIRS_AT_ONCE_OF_NO_RULE) // self.num_inputs)

    @property
    def num_tried(self) -> int:
        """The number of neurons in the self-test: so many that two threads share them."""
        return 2 * PIECES_OF_THREAD * self.piece

    def computed(self, *inputs: Any) -> tuple[list[np.ndarray], np.ndarray, list[np.ndarray]]:
        """Run the pass by one thread and by several."""
        # Each row is summed by one thread, so that their number must change no bit.
        with at_most_threads(1):
            alone = super().computed(*inputs)
        together = super().computed(*inputs)
        if not all(map(np.array_equal, *map(jax.tree.leaves, (alone, together)))):
            raise NotCompiled(f"in its self-test {num_threads.value} threads compute something else than one")
        return together

    @property
    def name(self) -> str:
        """The name of the compiled function."""
        return self.function.name

    @functools.cached_property
    def function(self) -> RowFunction:
        """The compiled function."""
        num_rows, words, traced, sparse = len(self.rows), self.words_at, self.traced, self.sparse
        consts = words + 4
        loops = [RowLoop(self, "first", None, [])]
        # Without a rule there are no equations, and the first loop is the only one.
        for row, name in zip(traced, ("quiet", "spiking"), strict=False):
            loops.append(RowLoop(self, name, row, [f"%a{consts + k}" for k in range(len(row.consts))]))
            consts += len(row.consts)
        code = "".join(loop.code() for loop in loops)
        begin, choose, num_results = "", _choice(self, ""), num_rows + 1 if traced else 1
        if sparse:
            begin, choose = begin_sparse(self, consts), choose_sparse(self, choose, _choice(self, "sparse_"))
            code += "".join(sparse_loop(loop, num_rows).code() for loop in loops)
            num_results += sparse.unreached.goes_on
            consts += 2 if sparse.unreached.goes_on else 1
        num_sums = num_lanes(self.num_inputs) // LANES
        body = f"""
  %sums = alloca <{LANES} x float>, i64 {num_sums}{begin}
  br label %rows
rows:
  %i = phi i64 [%first, %{"begin" if sparse else "start"}], [%next_i, %sum]
  %more = icmp ult i64 %i, %last
  br i1 %more, label %row, label %end
row:
  %neuron = trunc i64 %i to i32
{_zero_sums(num_sums)}
{choose}
{code}
sum:
{_total(num_sums)}
  %current_at = getelementptr float, ptr %r{num_results - 1}, i64 %i
  store float %total, ptr %current_at
  %next_i = add i64 %i, 1
  br label %rows
end:"""
        try:
            return compile_rows(body, _declarations(), consts, num_results, self.piece)
        except NoMachineCode as reason:
            raise NoPasses(str(reason)) from reason


def _choice(whole: MachineCodePass, prefix: str) -> str:
    """Return a jump to the loop over the pairs of this kind of row."""
    if not whole.traced:
        return f"  br label %{prefix}first_row"
    return f"""
  %{prefix}pending = load i8, ptr %a{whole.words_at + 3}
  %{prefix}is_pending = icmp ne i8 %{prefix}pending, 0
  %{prefix}spiked_at = getelementptr i8, ptr %a{whole.words_at + 2}, i64 %i
  %{prefix}spiked = load i8, ptr %{prefix}spiked_at
  %{prefix}is_spiked = icmp ne i8 %{prefix}spiked, 0
  br i1 %{prefix}is_pending, label %{prefix}changed_row, label %{prefix}first_row
{prefix}changed_row:
  br i1 %{prefix}is_spiked, label %{prefix}spiking_row, label %{prefix}quiet_row"""


def _zero_sums(num: int) -> str:
    return "\n".join(
        f"  %sum_{k}_at = getelementptr <{LANES} x float>, ptr %sums, i64 {k}\n"
        f"  store <{LANES} x float> zeroinitializer, ptr %sum_{k}_at"
        for k in range(num)
    )


def _total(num: int) -> str:
    """Return code of the sum of all lanes, added in halves as `sum_rows` does."""
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
    """Declare loads and stores of some lanes."""
    lines = []
    for kind, suffix in SUFFIX.items():
        type_, mask = f"<{LANES} x {kind}>", f"<{LANES} x i1>"
        lines += [
            f"declare {type_} @llvm.masked.load.v{LANES}{suffix}.p0(ptr, i32, {mask}, {type_})",
            f"declare void @llvm.masked.store.v{LANES}{suffix}.p0({type_}, ptr, i32, {mask})",
        ]
    return "\n".join(lines)
