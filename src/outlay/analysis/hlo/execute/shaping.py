"""What operations compute that make, move, cut and join arrays, and none that look anything up by number."""

from __future__ import annotations

import re
from typing import Any

import jax.numpy as jnp
from jax import lax

from outlay.analysis.hlo.execute.bitcast import bitcast
from outlay.analysis.hlo.execute.literal import read_literal
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
    return lax.pad(array, padding, [(dim[0], dim[1], dim[2]) for dim in config])


def _first(operation: Operation) -> Any:
    return operation.operands[0]


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
