"""What operations compute that make, move, cut and join arrays, and custom calls that are hints or memory."""

from __future__ import annotations

import re
from typing import Any

import jax.numpy as jnp
from jax import lax

from outlay.analysis.hlo.execute.bitcast import bitcast
from outlay.analysis.hlo.execute.literal import dtype_of, read_literal
from outlay.analysis.hlo.execute.operation import Meanings, Operation

_SLICE = re.compile(r"\[(\d+):(\d+)(?::(\d+))?\]")


def _constant(operation: Operation) -> Any:
    return jnp.asarray(read_literal(operation.instruction.value, operation.shape))


def _iota(operation: Operation) -> Any:
    return lax.broadcasted_iota(operation.dtype, operation.shape.dims, operation.number("iota_dimension", 0))


def _broadcast(operation: Operation) -> Any:
    return lax.broadcast_in_dim(operation.operands[0], operation.shape.dims, operation.numbers("dimensions"))


def _reshape(operation: Operation) -> Any:
    return lax.reshape(operation.operands[0], operation.shape.dims)


def _transpose(operation: Operation) -> Any:
    return lax.transpose(operation.operands[0], operation.numbers("dimensions"))


def _bitcast(operation: Operation) -> Any:
    return bitcast(operation.operands[0], operation.operand_shape(0), operation.shape)


def _bitcast_convert(operation: Operation) -> Any:
    return lax.bitcast_convert_type(operation.operands[0], operation.dtype).reshape(operation.shape.dims)


def _slice(operation: Operation) -> Any:
    cuts = _SLICE.findall(operation.instruction.attributes["slice"])
    starts, limits, strides = zip(*((int(low), int(high), int(step or 1)) for low, high, step in cuts), strict=True)
    return lax.slice(operation.operands[0], starts, limits, strides)


def _concatenate(operation: Operation) -> Any:
    return lax.concatenate(operation.operands, operation.number("dimensions", 0))


def _reverse(operation: Operation) -> Any:
    return lax.rev(operation.operands[0], operation.numbers("dimensions"))


def _pad(operation: Operation) -> Any:
    text = operation.instruction.attributes["padding"]
    config = [[*map(int, dim.split("_")), 0] for dim in text.split("x")]
    array, padding = operation.operands
    # On a TPU the two may have types of their own.
    return lax.pad(
        array.astype(operation.dtype), padding.astype(operation.dtype), [(dim[0], dim[1], dim[2]) for dim in config]
    )


def _first(operation: Operation) -> Any:
    return operation.operands[0] if operation.operands else ()


def _barrier(operation: Operation) -> Any:
    return operation.operands[0] if len(operation.operands) == 1 else operation.operands


def _tuple(operation: Operation) -> Any:
    return tuple(operation.operands)


def _element(operation: Operation) -> Any:
    return operation.operands[0][operation.number("index", 0)]


SHAPING: Meanings = {
    "add-dependency": _first,
    "after-all": lambda operation: (),
    "bitcast": _bitcast,
    "bitcast-convert": _bitcast_convert,
    "broadcast": _broadcast,
    "concatenate": _concatenate,
    "constant": _constant,
    "copy": _first,
    "domain": _first,
    "get-tuple-element": _element,
    "iota": _iota,
    "opt-barrier": _barrier,
    "optimization-barrier": _barrier,
    "pad": _pad,
    "reshape": _reshape,
    "reverse": _reverse,
    "slice": _slice,
    "transpose": _transpose,
    "tuple": _tuple,
}


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
    "annotate_device_placement": _first,
}
