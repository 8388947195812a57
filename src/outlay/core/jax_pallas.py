"""Kernels for GPUs written in Pallas, which is experimental: what Outlay takes of it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import jax


def has_triton() -> bool:
    """Return whether this JAX compiles Pallas kernels with Triton, whose end JAX 0.12 announces."""
    try:
        importlib.import_module("jax.experimental.pallas.triton")
    except ImportError:
        return False
    return True


def rows_kernel(
    kernel: Callable[..., None],
    num_rows: int,
    results: list[jax.ShapeDtypeStruct],
    *,
    aliases: dict[int, int],
    cost: dict[str, int],
    num_warps: int,
    interpret: bool,
    name: str,
) -> Callable[..., list[jax.Array]]:
    """Return a function that runs a kernel once for each row of its arrays, many at once.

    XLA compiles it (Triton), for a GPU that is attached or not.

    Args:
        kernel: of the number of the row, and of references to all arguments and then to all results, each to the whole.
        num_rows: how many rows there are.
        results: shape and dtype of what it gives.
        aliases: which argument each of the results takes the memory of.
        cost: its `flops`, `transcendentals` and `bytes_accessed`, which no compiler counts.
        num_warps: in how many groups of 32 threads a row is computed.
        interpret: compute it in plain JAX, anywhere.
        name: the name of the kernel.
    """
    # Imported here: it is heavy, and only programs for GPUs need it.
    from jax.experimental import pallas
    from jax.experimental.pallas import triton

    def with_number(*references: Any) -> None:
        kernel(pallas.program_id(0), *references)

    call: Any = pallas.pallas_call(
        with_number,
        grid=(num_rows,),
        out_shape=results,
        input_output_aliases=aliases,
        cost_estimate=pallas.CostEstimate(**cost),
        compiler_params=triton.CompilerParams(num_warps=num_warps),
        interpret=interpret,
        name=name,
    )
    return call


def load(
    reference: Any, index: tuple[Any, ...], *, piece: tuple[Any, int] | None = None, mask: Any = None
) -> jax.Array:
    """Load a number, or consecutive ones along the last dim, in a kernel.

    Args:
        reference: to the array.
        index: along each dim, but for the last where there is a piece.
        piece: where it begins, and how many numbers it has: a power of two.
        mask: which of them there are; the others become zeros.
    """
    from jax.experimental import pallas
    from jax.experimental.pallas import triton

    if piece is None:
        return reference[index]
    there = reference.at[(*index, pallas.ds(*piece))]
    return triton.load(there, mask=mask, other=None if mask is None else 0)


def store(reference: Any, index: tuple[Any, ...], value: jax.Array, *, start: Any, mask: Any = None) -> None:
    """Store consecutive numbers along the last dim, in a kernel.

    Args:
        reference: to the array.
        index: along each dim but the last.
        value: the numbers.
        start: where the first of them goes.
        mask: which of them are stored.
    """
    from jax.experimental import pallas
    from jax.experimental.pallas import triton

    triton.store(reference.at[(*index, pallas.ds(start, len(value)))], value, mask=mask)
