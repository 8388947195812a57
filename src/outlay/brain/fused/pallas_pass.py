"""The pass over the pairs as a Pallas kernel for GPUs: `pallas`.

A group of threads computes one row of pairs, piece by piece, and adds up in an order that does not depend on the other
rows. So rows get the same bits however they are split over devices. The kernel has been compiled for GPUs, and its
equations have been computed without one; it has neither run on a GPU nor been measured.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from outlay.analysis.work.traced import count_flops
from outlay.brain.fused.pair_pass import BOOL, FLOAT, UINT32, PairPass, PassCall
from outlay.brain.fused.row_equations import NoPasses, NotCompiled, RowEquations, TracedRow, View
from outlay.core.jax_kernels import compute_capability
from outlay.core.jax_pallas import has_triton, load, rows_kernel, store

MOST_LANES = 1024
"""The most pairs of a row that are computed at once."""
NUM_WARPS = 4
"""The number of groups of 32 threads that compute a row."""
OPERATIONS = {
    **{name: getattr(lax, name) for name in ("mul", "add", "sub", "div", "max", "min", "neg", "exp", "select_n")},
    **{name: getattr(lax, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "and": lax.bitwise_and,
}
"""Elementwise operations, by the names that JAX gives them."""


@dataclass(frozen=True)
class PallasPass(PairPass):
    """The pass as a kernel for NVIDIA GPUs.

    Attributes:
        rows: as of `PairPass`; so are the next four.
        num_inputs: see there.
        delays: see there.
        quiet: see there.
        spiking: see there.
        interpret: whether plain JAX computes the kernel, on any device, to try it without a GPU.
    """

    interpret: bool = False

    def check_device(self, device: jax.Device) -> None:
        """Raise unless the device is a GPU for which XLA compiles Pallas kernels."""
        if self.interpret:
            return
        capability = compute_capability(device)
        if capability is None:
            raise NoPasses(f"it is compiled for {device.platform}, and the kernel is for NVIDIA GPUs")
        if capability < (8, 0):
            raise NoPasses(f"this GPU has compute capability {capability[0]}.{capability[1]}, and 8.0 is needed")
        if not has_triton():
            raise NoPasses("this JAX has no Pallas for Triton (JAX 0.10 to 0.12 have)")

    @functools.cached_property
    def name(self) -> str:
        """Return a hash of all attributes."""
        return hashlib.sha256(repr(self).encode()).hexdigest()

    @classmethod
    def compute_all(
        cls, passes: Sequence[Self], calls: Sequence[PassCall]
    ) -> list[tuple[list[jax.Array], jax.Array, list[jax.Array]]]:
        """Compute each pass in a kernel of its own."""
        return [
            call.named(pairs._kernel(call.results, call.aliases)(*call.inputs))
            for pairs, call in zip(passes, calls, strict=True)
        ]

    def _kernel(
        self, results: list[jax.ShapeDtypeStruct], aliases: dict[int, int]
    ) -> Callable[..., Sequence[jax.Array]]:
        """Return a call of the kernel.

        Args:
            results: shapes and dtypes of what comes out.
            aliases: which input each of the results may take the memory of.
        """
        units, size = results[-1].shape[0], self.num_inputs
        flops = units * (2 * size + (count_flops(self.quiet.jaxpr) if self.quiet else 0))
        moved = sum(row.itemsize for row in self.rows) * (2 if self.quiet else 1)
        moved += self.delays.itemsize if self.delays else 0
        call = rows_kernel(
            self._row,
            units,
            results,
            aliases=aliases,
            cost={"flops": int(flops), "transcendentals": 0, "bytes_accessed": moved * units * size},
            num_warps=NUM_WARPS,
            interpret=self.interpret,
            name="pair_pass",
        )
        # Triton's truth values are bits, and those in memory bytes; and a reference has at least one dim.
        return lambda *inputs: call(*(_in_memory(x) for x in inputs))

    def _row(self, number: jax.Array, *references: Any) -> None:
        """Compute the row of one post neuron."""
        size, at, num_rows = self.num_inputs, self.words_at, len(self.rows)
        words, sign, spiked, pending = references[at : at + 4]
        *after, current = references[at + 4 + sum(len(row.consts) for row in self.traced) :]
        # Triton takes powers of two; what is beyond the row is masked.
        lanes = min(MOST_LANES, 1 << (size - 1).bit_length())
        neuron = number.astype(jnp.uint32)
        is_pending, is_spiking = load(pending, (0,)) != 0, load(spiked, (number,)) != 0

        def add_piece(place: Any, total: jax.Array) -> jax.Array:
            piece = _Piece.of(size, lanes, place * lanes)
            rows = [piece.load(View.of_row(references[k], dtype, size, number)) for k, dtype in enumerate(self.rows)]
            bits, inputs = piece.load(View.of(words, UINT32, (size,))), []
            if self.delays is not None:
                inputs = [piece.load(View.of_row(references[num_rows], self.delays, size, number))]
                bits = lax.shift_right_logical(bits, inputs[0].astype(jnp.uint32))
            inputs = [neuron, *rows, (bits & 2) != 0, *inputs]
            if self.traced:
                rows = lax.cond(is_pending, lambda: self._changed(piece, is_spiking, references, inputs), lambda: rows)
                for reference, row in zip(after, rows, strict=True):
                    store(reference, (number,), row, start=piece.start, mask=piece.mask)
            brought = rows[0].astype(jnp.float32) * piece.load(View.of(sign, FLOAT, (size,)))
            return total + jnp.where((bits & 1) != 0, brought, 0)

        total = lax.fori_loop(0, -(-size // lanes), add_piece, jnp.zeros(lanes, jnp.float32))
        current[number] = jnp.sum(total)

    def _changed(
        self, piece: _Piece, is_spiking: jax.Array, references: tuple[Any, ...], inputs: list[Any]
    ) -> list[jax.Array]:
        """Return a piece of the rows after the last step's change."""
        first = self.words_at + 4

        def changed(row: TracedRow, first: int) -> list[jax.Array]:
            consts = row.views(list(references[first : first + len(row.consts)]))
            rounded = row.rounded(self.rows[0])
            return [piece.vector(piece.number(x)) for x in piece.equations(rounded.jaxpr, consts, inputs)]

        quiet, spiking = self.traced
        return lax.cond(is_spiking, lambda: changed(spiking, first + len(quiet.consts)), lambda: changed(quiet, first))


@dataclass(frozen=True)
class _Piece(RowEquations[Any]):
    """Consecutive pairs of a row, which are computed at once.

    Attributes:
        size: entries of a row.
        lanes: the number of pairs, a power of two.
        start: the number of the first pair.
        mask: which of the pairs are in the row; None if all are.
    """

    size: int
    lanes: int
    start: Any
    mask: jax.Array | None

    @classmethod
    def of(cls, size: int, lanes: int, start: Any) -> _Piece:
        """Return the piece that begins with this pair."""
        mask = start + lax.iota(jnp.int32, lanes) < size if size % lanes else None
        return cls(size, lanes, start, mask)

    def constant(self, value: Any, dtype: Any) -> Any:
        """Return a constant as a scalar of NumPy, since a kernel closes over no arrays."""
        return np.asarray(value, dtype)[()]

    def vector(self, value: Any) -> jax.Array:
        """Return the same number for each pair."""
        return value if np.ndim(value) else jnp.full(self.lanes, value)

    def load(self, view: View) -> jax.Array:
        """Load one number, or those of the pairs."""
        index = tuple(np.int32(start) if isinstance(start, int) else start.astype(jnp.int32) for start in view.starts)
        if view.dims:
            loaded = load(view.array, index[:-1], piece=(self.start, self.lanes), mask=self.mask)
        else:
            loaded = load(view.array, index or (0,))
        return loaded != 0 if view.dtype == BOOL else loaded

    def operate(self, name: str, operands: list[Any], dtype: Any) -> jax.Array:
        """Compute an operation on numbers."""
        if name == "convert_element_type":
            return jnp.asarray(operands[0]).astype(dtype)
        if name == "bitcast_convert_type":
            return lax.bitcast_convert_type(operands[0], dtype)
        if name not in OPERATIONS:
            raise NotCompiled(f"{name} of {', '.join(str(operand.dtype) for operand in operands)}")
        if any(np.ndim(operand) for operand in operands):
            operands = [self.vector(operand) for operand in operands]
        return OPERATIONS[name](*operands)


def _in_memory(array: jax.Array) -> jax.Array:
    return jnp.atleast_1d(array.astype(jnp.uint8) if array.dtype == BOOL else array)
