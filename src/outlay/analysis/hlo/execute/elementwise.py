"""What operations compute that work entry by entry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from outlay.analysis.hlo.execute.operation import Meanings, Operation

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": lax.abs,
    "add": lax.add,
    "and": lax.bitwise_and,
    "atan2": lax.atan2,
    "cbrt": lax.cbrt,
    "ceil": lax.ceil,
    "clamp": lax.clamp,
    "complex": lax.complex,
    "cosine": lax.cos,
    "count-leading-zeros": lax.clz,
    "divide": lax.div,
    "erf": lax.erf,
    "exponential": lax.exp,
    "exponential-minus-one": lax.expm1,
    "floor": lax.floor,
    "imag": lax.imag,
    "is-finite": lax.is_finite,
    "log": lax.log,
    "log-plus-one": lax.log1p,
    "logistic": lax.logistic,
    "maximum": lax.max,
    "minimum": lax.min,
    "multiply": lax.mul,
    "negate": lax.neg,
    "not": lax.bitwise_not,
    "or": lax.bitwise_or,
    "popcnt": lax.population_count,
    "power": lax.pow,
    "real": lax.real,
    "remainder": lax.rem,
    "round-nearest-afz": lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO),
    "round-nearest-even": lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
    "rsqrt": lax.rsqrt,
    "select": lax.select,
    "shift-left": lax.shift_left,
    "shift-right-arithmetic": lax.shift_right_arithmetic,
    "shift-right-logical": lax.shift_right_logical,
    "sign": lax.sign,
    "sine": lax.sin,
    "sqrt": lax.sqrt,
    "subtract": lax.sub,
    "tan": lax.tan,
    "tanh": lax.tanh,
    "xor": lax.bitwise_xor,
}
_COMPARISONS = {"EQ": lax.eq, "NE": lax.ne, "LT": lax.lt, "LE": lax.le, "GT": lax.gt, "GE": lax.ge}
# Sums and products of truth values, which lax refuses.
_OF_TRUTH = {"add": lax.bitwise_or, "multiply": lax.bitwise_and, "maximum": lax.bitwise_or, "minimum": lax.bitwise_and}


def _applied(name: str) -> Callable[[Operation], Any]:
    function = _FUNCTIONS[name]

    def meaning(operation: Operation) -> Any:
        operands = operation.operands
        if name in _OF_TRUTH and operands[0].dtype == bool:
            return _OF_TRUTH[name](*operands)
        if name == "power" and not jnp.issubdtype(operands[0].dtype, jnp.inexact):
            return jnp.power(*operands).astype(operation.dtype)
        return function(*_of_one_float(operands))

    return meaning


def _of_one_float(operands: tuple[Any, ...]) -> list[Any]:
    """Return the operands with floats of one type: an operation of a TPU may take several."""
    floats = {operand.dtype for operand in operands if jnp.issubdtype(operand.dtype, jnp.floating)}
    if len(floats) < 2:
        return list(operands)
    widest = max(floats, key=lambda dtype: dtype.itemsize)
    return [x.astype(widest) if jnp.issubdtype(x.dtype, jnp.floating) else x for x in operands]


def _compare(operation: Operation) -> Any:
    left, right = operation.operands
    if operation.instruction.attributes.get("type") == "TOTALORDER" and jnp.issubdtype(left.dtype, jnp.floating):
        left, right = _in_total_order(left), _in_total_order(right)
    return _COMPARISONS[operation.instruction.attributes["direction"]](left, right)


def _in_total_order(value: Any) -> Any:
    """Return integers that are ordered as IEEE 754 orders all floats: -NaN, -inf, ..., -0, 0, ..., inf, NaN."""
    integer = jnp.dtype(f"int{value.dtype.itemsize * 8}")
    bits = lax.bitcast_convert_type(value, integer)
    return jnp.where(bits < 0, jnp.bitwise_xor(bits, jnp.iinfo(integer).max), bits)


def _convert(operation: Operation) -> Any:
    (value,) = operation.operands
    return lax.convert_element_type(value, operation.dtype)


def _reduce_precision(operation: Operation) -> Any:
    (value,) = operation.operands
    bits = operation.number("exponent_bits", 8), operation.number("mantissa_bits", 23)
    return lax.reduce_precision(value, *bits)


def _map(operation: Operation) -> Any:
    function = operation.applied("to_apply")
    flat = [value.reshape(-1) for value in operation.operands]
    return jax.vmap(function)(*flat).reshape(operation.shape.dims)


ELEMENTWISE: Meanings = {
    **{name: _applied(name) for name in _FUNCTIONS},
    "compare": _compare,
    "convert": _convert,
    "map": _map,
    "reduce-precision": _reduce_precision,
}
