"""Kernels written in Pallas, which is experimental: what Outlay takes of it."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
from jax._src.interpreters import mlir

from outlay.core.jax_tracing import operations


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


@dataclass(frozen=True)
class PallasKernel:
    """A Pallas kernel in a traced program, which the compiler of its hardware makes machine code of.

    Attributes:
        name: its name, as the compiled program says it too.
        operands: its arguments as shapes.
        results: what it returns, as shapes.
        source: its own program and its grid, in words: kernels of the same source compute the same.
    """

    name: str
    operands: tuple[jax.ShapeDtypeStruct, ...]
    results: tuple[jax.ShapeDtypeStruct, ...]
    source: str
    _call: Callable[..., list[jax.Array]]

    def as_hlo(self) -> str:
        """Return the kernel as a program of plain operations, made by Pallas's own interpreter, as text of HLO."""
        lowered = jax.jit(self._call).trace(*self.operands).lower(lowering_platforms=("cpu",))
        return str(lowered.as_text(dialect="hlo"))


@contextlib.contextmanager
def interpreted_on_cpus() -> Iterator[None]:
    """Let programs for CPUs hold Pallas kernels, which run by Pallas's own interpreter; JAX refuses to lower them."""
    from jax.experimental import pallas

    call: Any = pallas.pallas_call(_copy, out_shape=_NUMBER)
    (eqn,) = operations(jax.make_jaxpr(call)(0.0), "pallas_call")
    original: Any = mlir._lowerings[eqn.primitive].rule

    def interpreted(ctx: Any, *operands: Any, interpret: Any, **params: Any) -> Any:
        return original(ctx, *operands, interpret=interpret or True, **params)

    mlir.register_lowering(eqn.primitive, interpreted, platform="cpu")
    try:
        yield
    finally:
        del mlir._platform_specific_lowerings["cpu"][eqn.primitive]


_NUMBER = jax.ShapeDtypeStruct((), "float32")


def _copy(operand: Any, result: Any) -> None:
    result[...] = operand[...]


def kernels_in(jaxpr: Any) -> tuple[PallasKernel, ...]:
    """Return the Pallas kernels of a traced program.

    Args:
        jaxpr: the program, traced for the hardware that the kernels are for.
    """
    return tuple(_kernel(eqn) for eqn in operations(jaxpr, "pallas_call"))


def _kernel(eqn: Any) -> PallasKernel:
    params = {**eqn.params, "interpret": True}

    def call(*operands: jax.Array) -> list[jax.Array]:
        results: list[jax.Array] = eqn.primitive.bind(*operands, **params)
        return results

    operands, results = (
        tuple(jax.ShapeDtypeStruct(one.aval.shape, one.aval.dtype) for one in values)
        for values in (eqn.invars, eqn.outvars)
    )
    source = f"{params['grid_mapping']} {params['input_output_aliases']} {params['jaxpr']}"
    return PallasKernel(params["name"] or "", operands, results, source, call)
