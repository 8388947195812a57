"""What custom calls compute that are no products: hints of compilers, memory, and kernels with a known meaning."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from outlay.analysis.hlo.execute.literal import dtype_of
from outlay.analysis.hlo.execute.operation import Meanings, Operation
from outlay.analysis.hlo.execute.reducing import REDUCING


def _first(operation: Operation) -> Any:
    return operation.operands[0] if operation.operands else ()


def _zeros(operation: Operation) -> Any:
    shapes = operation.instruction.shapes
    values = [jnp.zeros(shape.dims, dtype_of(shape.dtype)) for shape in shapes]
    return values[0] if len(values) == 1 else tuple(values)


def _concatenated(operation: Operation) -> Any:
    first = operation.operands[0]
    dim = next(at for at, size in enumerate(operation.shape.dims) if size != first.shape[at])
    return jnp.concatenate(operation.operands, axis=dim)


def _async_collective_start(operation: Operation) -> Any:
    """Return what a TPU's collective was given and what it returned, and flags that nobody reads here."""
    collective = operation.computation.instructions[operation.instruction.operands[0]]
    flags = [jnp.zeros(shape.dims, dtype_of(shape.dtype)) for shape in operation.instruction.shapes[2:]]
    return operation.values[collective.operands[0]], operation.operands[0], *flags


def _async_collective_done(operation: Operation) -> Any:
    """Return the result of the collective, which stands again in the fusion that waits for it."""
    instructions = operation.computation.instructions
    return next(
        value
        for name, value in zip(operation.instruction.operands, operation.operands, strict=True)
        if instructions[name].opcode != "parameter"
    )


LIBRARY_CALLS: Meanings = {
    "AllocateBuffer": _zeros,
    "AsyncCollectiveDone": _async_collective_done,
    "AsyncCollectiveStart": _async_collective_start,
    "AssumeGatherIndicesInBound": _first,
    "AssumeScatterIndicesInBound": _first,
    "ConcatBitcast": _concatenated,
    "GatherScatterIndicesBitpacked": _first,
    "MoveToDevice": _first,
    "MoveToHost": _first,
    "ScalarToVector": _first,
    "SPMDFullToShardShape": _first,
    "SPMDShardToFullShape": _first,
    "Sharding": _first,
    "TopK": REDUCING["topk"],
    "__gpu$TopK": REDUCING["topk"],
    "annotate_device_placement": _first,
}
