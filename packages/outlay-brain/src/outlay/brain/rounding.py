"""Round after each operation of a float16 or bfloat16 Brain, whatever XLA makes of the step.

Within a fusion XLA keeps narrow numbers in float32, rounds a product and a sum as one, and reorders constants. When it
does so depends on its version, on the processor, and on what it fuses. So a narrow step is traced, and its operations
are run one by one, separated by an operation that XLA cannot see through (`_unseen`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.extend.core import jaxprs_in_params

from outlay.kit import CALLS, CHECKPOINTS, COND, CUSTOM_RULES, SCAN, WHILE, rerun, run_jaxpr

NARROW = (jnp.dtype("float16"), jnp.dtype("bfloat16"))
"""Dtypes narrower than those that XLA computes with."""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


MOVES = _names("""
    abs broadcast_in_dim clamp concatenate copy copy_p dynamic_slice dynamic_update_slice expand_dims gather max min neg
    optimization_barrier pad reduce_max reduce_min reshape rev scatter select_n sign slice sort split squeeze
    stop_gradient transpose
""")
"""Operations whose results are among their operands: there is nothing to round."""
ELSEWHERE = _names("all_gather all_to_all bitcast_convert_type ffi_call pallas_call ppermute reduce_precision")
"""Operations whose results are rounded already: from another device or memory, or by themselves."""
ELEMENTWISE = _names("""
    acos acosh add add_any asin asinh atan atan2 atanh cbrt cos cosh div erf erf_inv erfc exp exp2 expm1 integer_pow
    lgamma log log1p logistic mul pow rem rsqrt sin sinh sqrt square sub tan tanh
""")
"""Elementwise operations: narrow numbers are computed in float32, then rounded."""
SUMS, PRODUCTS = ("add", "add_any", "sub"), ("mul", "integer_pow", "square")
OF_CONSTANTS = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}
"""Operations that are computed before the run if all their operands are constants."""


def is_narrow(dtype: Any) -> bool:
    """Return whether a dtype is narrower than the dtypes that XLA computes in."""
    return jnp.dtype(dtype) in NARROW


def rounds_each(function: Callable[..., Any], dtype: Any) -> Callable[..., Any]:
    """Make each operation of a function round to the dtype of its result, if the Brain's dtype is narrow.

    Operations in float32 within it round to float32, too. A float32 division by a constant is a product with its
    reciprocal, as XLA computes it in any case. Exponentials and the like are the device's float32 functions, rounded.

    Args:
        function: any function of trees of arrays.
        dtype: the dtype of the Brain; for float32 the function is returned unchanged.
    """
    if not is_narrow(dtype):
        return function

    def rounded(*args: Any) -> Any:
        # A new function each time, so that JAX traces it for the arrays and the mesh at hand.
        jaxpr, result = jax.make_jaxpr(lambda *args: function(*args), return_shape=True)(*args)
        return jax.tree.unflatten(jax.tree.structure(result), _run(jaxpr, jax.tree.leaves(args)))

    return rounded


@dataclass(frozen=True)
class _Number:
    """A number or an array, with what XLA could merge its next operation with.

    Attributes:
        value: the number or array itself.
        made_by: the kinds of the operations that computed it: `sum`, `product` or `other`.
        is_power: whether each entry is 0 or, but for its sign, a power of two, with which a product is exact.
    """

    value: Any
    made_by: frozenset[str] = frozenset()
    is_power: bool = False

    @property
    def is_known(self) -> bool:
        """Return whether it is a constant of the program."""
        return not isinstance(self.value, Tracer)


def _run(jaxpr: Any, values: Sequence[Any]) -> list[Any]:
    """Run a traced program, whose results XLA cannot merge with what follows."""
    return [_opaque(number) for number in _run_numbers(jaxpr, [_Number(value) for value in values])]


def _run_numbers(jaxpr: Any, numbers: Sequence[_Number]) -> list[_Number]:
    return [_number(result) for result in run_jaxpr(jaxpr, numbers, _evaluate)]


def _number(value: Any) -> _Number:
    """Wrap an operand of an operation: a constant of the program is given as its value."""
    if isinstance(value, _Number):
        return value
    # Constants of other dtypes, such as keys of random numbers, have no powers of two; and what a function closes over
    # may be traced by another one.
    is_known = not isinstance(value, Tracer) and np.ndim(value) == 0
    is_float = is_known and jnp.issubdtype(jnp.result_type(value), jnp.floating)
    return _Number(value, is_power=is_float and abs(np.frexp(float(value))[0]) in (0, 0.5))


def _evaluate(eqn: Any, values: list[Any], bind: Callable[..., list[Any]]) -> list[_Number]:
    """Run one operation of a traced program."""
    name, params, numbers = eqn.primitive.name, eqn.params, [_number(value) for value in values]
    if name in CALLS or name in CHECKPOINTS:
        return _run_numbers(next(iter(jaxprs_in_params(params))), numbers)
    if name in (SCAN, WHILE, COND, *CUSTOM_RULES):
        return [_Number(result) for result in rerun(eqn, [_opaque(number) for number in numbers], _run)]
    dtypes = [variable.aval.dtype for variable in eqn.outvars]
    if name in ELSEWHERE or not any(jnp.issubdtype(dtype, jnp.floating) for dtype in dtypes):
        return [_Number(x) for x in bind(*map(_opaque, numbers))]
    if name in MOVES or _is_exact(eqn):
        floats = [
            x for x, atom in zip(numbers, eqn.invars, strict=True) if jnp.issubdtype(atom.aval.dtype, jnp.floating)
        ]
        made_by, is_power = frozenset().union(*(x.made_by for x in floats)), all(x.is_power for x in floats)
        return [_Number(x, made_by, is_power) for x in bind(*(number.value for number in numbers))]
    if name in ELEMENTWISE:
        return [_operation(name, lambda *values: bind(*values)[0], numbers, dtypes[0], eqn.params.get("y"))]
    results = bind(*map(_opaque, numbers))
    if name == "convert_element_type" and not is_narrow(dtypes[0]):
        return [_Number(x) for x in results]
    return [_rounded(x) if jnp.issubdtype(x.dtype, jnp.floating) else _Number(x) for x in results]


def _is_exact(eqn: Any) -> bool:
    """Return whether an operation is a conversion to a dtype that has all numbers of the one before."""
    if eqn.primitive.name != "convert_element_type":
        return False
    before, after = eqn.invars[0].aval.dtype, eqn.outvars[0].aval.dtype
    if not jnp.issubdtype(before, jnp.floating):
        # Of whole numbers only these are exact in every dtype.
        return before == np.bool_
    narrow, wide = jnp.finfo(before), jnp.finfo(after)
    return narrow.nmant <= wide.nmant and narrow.nexp <= wide.nexp


def _operation(
    name: str, compute: Callable[..., Any], operands: list[_Number], dtype: Any, power: int | None = None
) -> _Number:
    """Run an elementwise operation."""
    if name == "integer_pow" and power is not None:
        return _power(operands[0], power, dtype)
    if name in OF_CONSTANTS and all(operand.is_known for operand in operands):
        return _Number(OF_CONSTANTS[name](*(np.asarray(operand.value, dtype) for operand in operands)))
    are_known = any(operand.is_known for operand in operands)
    if is_narrow(dtype):
        values = [_widened(operand.value) for operand in operands]
        if name == "div":
            # XLA makes of a division by a constant a product with its reciprocal, which rounds otherwise.
            values[1] = _behind(values[0], values[1])
        return _rounded(compute(*values).astype(dtype))
    values = [_opaque(x) if _would_merge(name, x, are_known) else x.value for x in operands]
    if name == "div" and operands[1].is_known:
        reciprocal = np.asarray(1, dtype) / np.asarray(operands[1].value, dtype)
        return _Number(lax.mul(*jnp.broadcast_arrays(values[0], reciprocal)), frozenset({"product"}))
    if name == "div":
        values[1] = _behind(values[0], values[1])
    if name == "mul" and any(operand.is_power for operand in operands):
        return _Number(compute(*values), frozenset().union(*(operand.made_by for operand in operands)))
    kind = "sum" if name in SUMS else "product" if name in PRODUCTS else "other"
    return _Number(compute(*values), frozenset({kind}))


def _power(base: _Number, power: int, dtype: Any) -> _Number:
    """Compute an integer power as products."""
    if power < 0:
        return _operation("div", lax.div, [_Number(jnp.ones_like(base.value)), _power(base, -power, dtype)], dtype)
    result = base if power else _Number(jnp.ones_like(base.value))
    for _ in range(power - 1):
        result = _operation("mul", lax.mul, [result, base], dtype)
    return result


def _would_merge(name: str, operand: _Number, with_known: bool) -> bool:
    """Return whether XLA or LLVM might round an operation and the one before it as one, or reorder their constants."""
    if name in SUMS:
        return "product" in operand.made_by or (with_known and "sum" in operand.made_by)
    return "other" in operand.made_by or ("product" in operand.made_by and (with_known or name not in PRODUCTS))


def _opaque(number: _Number) -> Any:
    """Hide from XLA how a number was computed."""
    return _unseen(number.value) if number.made_by and not number.is_known else number.value


def _rounded(value: Any) -> _Number:
    """Wrap a rounded result; hidden, since XLA drops a conversion to a narrow dtype and back if it sees both."""
    if is_narrow(value.dtype):
        return _Number(_unseen(value) if isinstance(value, Tracer) else value)
    return _Number(value, frozenset({"other"}))


@jax.custom_jvp
def _unseen(value: Any) -> Any:
    """Return the same number, in a way that neither XLA nor LLVM sees through.

    Its bits are compared: if all are set, which no operation produces, another NaN takes its place. Three simpler ways
    fail. XLA drops `lax.optimization_barrier` before it fuses, on CPUs up to JAX 0.10. `lax.reduce_precision` takes
    float16's numbers below 6e-5 for 0. A comparison of a number with itself does not hide it: LLVM knows the answer for
    numbers converted from integers.
    """
    bits = lax.bitcast_convert_type(value, _unsigned(value.dtype))
    nan = np.asarray(np.nan, value.dtype).view(bits.dtype)
    return lax.bitcast_convert_type(lax.select(_are_all_set(bits), lax.full_like(bits, nan), bits), value.dtype)


_unseen.defjvps(lambda tangent, result, value: tangent)


def _behind(seen: Any, value: Any) -> Any:
    """Hide from XLA that a value is constant: it becomes NaN if the bits of another number are all set."""
    seen, value = jnp.broadcast_arrays(seen, value)
    bits = lax.bitcast_convert_type(seen, _unsigned(seen.dtype))
    return lax.select(_are_all_set(bits), lax.full_like(value, jnp.nan), value)


def _are_all_set(bits: jax.Array) -> jax.Array:
    return lax.eq(bits, lax.full_like(bits, np.iinfo(bits.dtype).max))


def _unsigned(dtype: Any) -> np.dtype:
    return np.dtype(f"uint{8 * dtype.itemsize}")


def _widened(value: Any) -> Any:
    return value.astype(np.float32) if is_narrow(jnp.result_type(value)) else value
