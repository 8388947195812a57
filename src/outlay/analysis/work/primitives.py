"""The FLOPs of one operation of a traced program, by its primitive; moving data and counting in integers are none."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax.extend.core import JaxprEqn

from outlay.analysis.work.convolution import valid_products
from outlay.analysis.work.kernels import TRACED_ATTENTION, traced_attention_flops


def flops_of(eqn: JaxprEqn) -> float | None:
    """The FLOPs of an operation that runs no other jaxpr; None where nobody knows."""
    name = eqn.primitive.name
    if name in _COUNTED:
        return _COUNTED[name](eqn)
    if name in _ELEMENTWISE:
        return _elementwise(eqn)
    if name in _REDUCTIONS:
        return _size(eqn.invars[0]) if _is_inexact(eqn.invars[0]) else 0.0
    if name in _MOVES or not any(_is_inexact(out) for out in eqn.outvars):
        return 0.0
    return None


def _shape(atom: Any) -> tuple[int, ...]:
    return getattr(atom.aval, "shape", ())


def _size(atom: Any) -> float:
    return float(math.prod(_shape(atom)))


def _dtype(atom: Any) -> Any:
    """The dtype of a value; None for what is no array, such as a token."""
    return getattr(atom.aval, "dtype", None)


def _is_inexact(atom: Any) -> bool:
    dtype = _dtype(atom)
    return dtype is not None and jnp.issubdtype(dtype, jnp.inexact)


def _elementwise(eqn: JaxprEqn) -> float:
    if not any(_is_inexact(operand) for operand in eqn.invars):
        return 0.0
    return max(_size(out) for out in eqn.outvars)


def _dot_general(eqn: JaxprEqn) -> float:
    (contracted, _), _ = eqn.params["dimension_numbers"]
    left = _shape(eqn.invars[0])
    per_product = 8 if jnp.issubdtype(_dtype(eqn.outvars[0]), jnp.complexfloating) else 2
    return per_product * _size(eqn.outvars[0]) * math.prod(left[dim] for dim in contracted)


def _ragged_dot_general(eqn: JaxprEqn) -> float:
    """Each row of the left operand meets the free dims of one group of the right, whichever dim is ragged."""
    numbers = eqn.params["ragged_dot_dimension_numbers"]
    (_, contracted), (_, batch) = numbers.dot_dimension_numbers
    used = {*contracted, *batch, *numbers.rhs_group_dimensions}
    free = math.prod(size for dim, size in enumerate(_shape(eqn.invars[1])) if dim not in used)
    return 2 * _size(eqn.invars[0]) * free


def _conv_general_dilated(eqn: JaxprEqn) -> float:
    params, numbers = eqn.params, eqn.params["dimension_numbers"]
    image, kernel, out = (_shape(atom) for atom in (*eqn.invars[:2], eqn.outvars[0]))
    products = [
        valid_products(image[i], kernel[k], out[o], stride=stride, pad_low=low, dilation=spread, kernel_dilation=holes)
        for i, k, o, stride, (low, _), spread, holes in zip(
            numbers.lhs_spec[2:],
            numbers.rhs_spec[2:],
            numbers.out_spec[2:],
            params["window_strides"],
            params["padding"],
            params["lhs_dilation"],
            params["rhs_dilation"],
            strict=True,
        )
    ]
    samples_and_features = out[numbers.out_spec[0]] * out[numbers.out_spec[1]]
    return 2.0 * samples_and_features * kernel[numbers.rhs_spec[1]] * math.prod(products)


def _window(eqn: JaxprEqn) -> float:
    return _size(eqn.outvars[0]) * math.prod(eqn.params["window_dimensions"])


def _sort(eqn: JaxprEqn) -> float:
    """One comparison a level of a merge sort, as XLA counts it."""
    length = _shape(eqn.invars[0])[eqn.params["dimension"]]
    return _size(eqn.invars[0]) * max(1, math.ceil(math.log2(max(length, 1))))


def _fft(eqn: JaxprEqn) -> float:
    length = math.prod(eqn.params["fft_lengths"])
    num_points = max(_size(eqn.invars[0]), _size(eqn.outvars[0]))
    return 5 * num_points * math.log2(max(length, 2))


def _cholesky(eqn: JaxprEqn) -> float:
    *batch, n, _ = _shape(eqn.invars[0])
    return math.prod(batch) * n**3 / 3


def _lu(eqn: JaxprEqn) -> float:
    *batch, m, n = _shape(eqn.invars[0])
    k = min(m, n)
    return math.prod(batch) * (2 * m * n * k - (m + n) * k**2 + 2 * k**3 / 3)


def _triangular_solve(eqn: JaxprEqn) -> float:
    return _size(eqn.invars[1]) * _shape(eqn.invars[0])[-1]


def _updates(eqn: JaxprEqn) -> float:
    return _size(eqn.invars[-1])


def _select_and_scatter_add(eqn: JaxprEqn) -> float:
    """The gradient of a pooling by maximum: each window is searched again."""
    return _size(eqn.outvars[0]) + _size(eqn.invars[0]) * math.prod(eqn.params["window_dimensions"])


_COUNTED: dict[str, Callable[[JaxprEqn], float]] = {
    **dict.fromkeys(TRACED_ATTENTION, traced_attention_flops),
    "dot_general": _dot_general,
    "ragged_dot_general": _ragged_dot_general,
    "conv_general_dilated": _conv_general_dilated,
    "reduce_window_sum": _window,
    "reduce_window_max": _window,
    "reduce_window_min": _window,
    "select_and_gather_add": _window,
    "select_and_scatter_add": _select_and_scatter_add,
    "sort": _sort,
    "fft": _fft,
    "cholesky": _cholesky,
    "lu": _lu,
    "triangular_solve": _triangular_solve,
    "scatter-add": _updates,
    "scatter-sub": _updates,
    "scatter-mul": _updates,
    "scatter-min": _updates,
    "scatter-max": _updates,
    "addupdate": _updates,
}

_ELEMENTWISE = frozenset(
    (
        *("abs", "acos", "acosh", "add", "add_any", "asin", "asinh", "atan", "atan2", "atanh", "bessel_i0e"),
        *("bessel_i1e", "cbrt", "ceil", "clamp", "cos", "cosh", "digamma", "div", "eq", "erf", "erf_inv"),
        *("erfc", "exp", "exp2", "expm1", "floor", "ge", "gt", "igamma", "igamma_grad_a", "igammac"),
        *("integer_pow", "is_finite", "le", "lgamma", "log", "log1p", "log2", "logistic", "lt", "max", "min"),
        *("mul", "ne", "neg", "nextafter", "one_minus_square", "polygamma", "polynomial", "pow", "reciprocal"),
        *("regularized_incomplete_beta", "rem", "round", "rsqrt", "select_n", "sign", "sin", "sinh", "sqrt"),
        *("square", "sub", "tan", "tanh", "zeta"),
    )
)
"""One FLOP an element of the result, also where hardware needs several instructions, as for tanh."""

_REDUCTIONS = frozenset(
    (
        *("argmax", "argmin", "cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum", "reduce_max"),
        *("reduce_min", "reduce_prod", "reduce_sum", "top_k", "approx_top_k"),
    )
)
"""One FLOP an element of the operand."""

_MOVES = frozenset(
    (
        *("all_gather", "all_gather_invariant", "all_gather_reduced", "all_to_all", "bitcast_convert_type"),
        *("broadcast_in_dim", "broadcast_to", "complex", "concatenate", "conj", "convert_element_type", "copy"),
        *("copy_p", "copy_to_host", "device_put", "dynamic_slice", "dynamic_update_slice", "empty", "empty2"),
        *("gather", "get", "imag", "iota", "layout_constraint", "name", "new_ref", "free_ref", "freeze"),
        *("optimization_barrier", "pad", "pbroadcast", "pcast", "pmax", "pmin", "ppermute", "preduced", "psum"),
        *("psum_invariant", "pvary", "random_wrap", "random_unwrap", "real", "reduce_precision"),
        *("reduce_scatter", "reduced_vary_cast", "reduced_vary_cast_p", "relayout", "reshape", "reshard"),
        *("rev", "rng_uniform", "scatter", "sharding_constraint", "slice", "split", "squeeze", "stack"),
        *("stop_gradient", "swap", "tile", "transpose", "unpin", "pin", "unreduced_psum"),
        *("unreduced_reduce_scatter", "unstack", "vary_unreduced_cast", "vary_unreduced_cast_p"),
        *("with_memory_space_constraint", "zeros_like"),
    )
)
"""What only moves floats; collectives are priced by what they move."""
