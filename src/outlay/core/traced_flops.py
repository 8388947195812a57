"""Count the FLOPs of a traced step, whatever it will be compiled to: loops multiplied out, all devices together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax.extend.core import Jaxpr, JaxprEqn, jaxprs_in_params

from outlay.core.factorization_flops import factorization_flops, fft_flops
from outlay.core.primitives import FREE, KINDS
from outlay.core.product_flops import attention_flops, convolution_flops

_REPLACED = ("pallas_call", "mpmd_map", "custom_partitioning")
"""Operations that are not compiled from the jaxpr they carry, or run it over a grid."""

_COMBINED = (
    *("reduce", "reduce_window", "reduce_and", "reduce_or", "reduce_xor", "select_and_scatter"),
    *("scatter", "scatter-add", "scatter-sub", "scatter-mul", "scatter-min", "scatter-max"),
)

_REDUCTIONS = KINDS["reduces"] | KINDS["cumulative"] | {"top_k", "approx_top_k"}
"""Operations that count one FLOP per element of the operand."""


@dataclass(frozen=True)
class TracedWork:
    """What a traced program computes, on all devices together.

    Attributes:
        flops: floating-point operations.
        unknown: what was left out, or counted once because its count is unknown, in words, each kind once.
    """

    flops: float
    unknown: tuple[str, ...]


def count_flops(jaxpr: Any) -> float:
    """Count the floating-point operations of a traced program, on all devices together.

    A multiplication and an addition count two, any other operation on an element one. A scan counts its length, a
    `cond` its most expensive branch, a `shard_map` every device of its axes. Integer arithmetic and data movement count
    nothing. Values that nobody uses, which a compiler leaves out, are counted too.

    Args:
        jaxpr: the result of `jax.make_jaxpr(f)(...)` or of `jax.jit(f).trace(...)`.

    >>> count_flops(jax.make_jaxpr(jnp.dot)(jnp.ones((4, 8)), jnp.ones((8, 2))))
    128.0
    """
    return traced_work(jaxpr).flops


def traced_work(jaxpr: Any) -> TracedWork:
    """Count as `count_flops` does, and report what could not be counted.

    >>> traced_work(jax.make_jaxpr(lambda x: jax.lax.while_loop(jnp.any, lambda x: x * 0.5, x))(jnp.ones(4)))
    TracedWork(flops=4.0, unknown=('while: how often it runs is known only when it runs; counted once',))
    """
    unknown: dict[str, None] = {}
    return TracedWork(_flops(jaxpr, unknown), tuple(unknown))


def flops_of(eqn: JaxprEqn) -> float:
    """Count one operation of a traced program as `count_flops` does, with all that it runs."""
    return _eqn_flops(eqn, {})


def times_run(eqn: JaxprEqn) -> int:
    """Return how often an operation runs what is inside it: a loop its length, a `shard_map` its devices."""
    return _repeats(eqn)


def _flops(jaxpr: Jaxpr | Any, unknown: dict[str, None]) -> float:
    inner = getattr(jaxpr, "jaxpr", jaxpr)  # a closed jaxpr holds the jaxpr
    return float(sum(_eqn_flops(eqn, unknown) for eqn in inner.eqns))


def _eqn_flops(eqn: JaxprEqn, unknown: dict[str, None]) -> float:
    name, params = eqn.primitive.name, eqn.params
    if name in _REPLACED:
        return _reported(eqn, unknown)
    if name == "cond":
        return max(_flops(branch, unknown) for branch in params["branches"])
    if name == "while":
        unknown["while: how often it runs is known only when it runs; counted once"] = None
    inner = list(_inner_jaxprs(eqn))
    if inner:
        return _repeats(eqn) * sum(_flops(jaxpr, unknown) for jaxpr in inner)
    flops = _flops_of(eqn)
    if flops is None:
        unknown[f"{name}: FLOPs unknown; not counted"] = None
    return flops or 0.0


def _reported(eqn: JaxprEqn, unknown: dict[str, None]) -> float:
    """Return the cost that a kernel's author declares."""
    cost = eqn.params.get("cost_estimate")
    if cost is not None:
        return float(cost.flops)
    unknown[f"{eqn.primitive.name}: FLOPs unknown without its author's cost_estimate; not counted"] = None
    return 0.0


def _repeats(eqn: JaxprEqn) -> int:
    if eqn.primitive.name == "scan":
        return eqn.params["length"]
    if eqn.primitive.name == "shard_map":
        # Its jaxpr has the shapes of one device's pieces.
        sizes = eqn.params["mesh"].shape
        return math.prod(sizes[axis] for axis in eqn.params["newly_manual_axes"])
    return 1


def _inner_jaxprs(eqn: JaxprEqn) -> Iterator[Any]:
    """Return the jaxprs that an operation runs, without the small ones that combine two entries."""
    if eqn.primitive.name in _COMBINED:
        return
    if eqn.primitive.name == "custom_linear_solve":
        # The others only say how to differentiate the solution.
        yield eqn.params["jaxprs"].solve
        return
    yield from jaxprs_in_params(eqn.params)


def _flops_of(eqn: JaxprEqn) -> float | None:
    """Return the FLOPs of an operation that runs no other jaxpr; None if unknown."""
    name = eqn.primitive.name
    if name in _COUNTED:
        return _COUNTED[name](eqn)
    if name in KINDS["arithmetic"]:  # one FLOP per element, even if hardware needs several, as for tanh
        return _elementwise(eqn)
    if name in _REDUCTIONS:
        return _size(eqn.invars[0]) if _is_inexact(eqn.invars[0]) else 0.0
    if name in FREE or not any(_is_inexact(out) for out in eqn.outvars):
        return 0.0
    return None


def _shape(atom: Any) -> tuple[int, ...]:
    return getattr(atom.aval, "shape", ())


def _size(atom: Any) -> float:
    return float(math.prod(_shape(atom)))


def _dtype(atom: Any) -> Any:
    """Return the dtype of a value; None if it is not an array, such as a token."""
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
    """Count a ragged product: each row of the left operand meets one group of the right, whichever dim is ragged."""
    numbers = eqn.params["ragged_dot_dimension_numbers"]
    (_, contracted), (_, batch) = numbers.dot_dimension_numbers
    used = {*contracted, *batch, *numbers.rhs_group_dimensions}
    free = math.prod(size for dim, size in enumerate(_shape(eqn.invars[1])) if dim not in used)
    return 2 * _size(eqn.invars[0]) * free


def _conv_general_dilated(eqn: JaxprEqn) -> float:
    params, numbers = eqn.params, eqn.params["dimension_numbers"]
    shapes = [_shape(atom) for atom in (*eqn.invars[:2], eqn.outvars[0])]
    specs = (numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec)
    sizes = [[shape[dim] for dim in spec] for shape, spec in zip(shapes, specs, strict=True)]
    lows = [low for low, _ in params["padding"]]
    windows = zip(params["window_strides"], lows, params["lhs_dilation"], params["rhs_dilation"], strict=True)
    image, kernel, out = sizes
    return convolution_flops(zip(image[2:], kernel[2:], out[2:], strict=True), windows, out[0] * out[1], kernel[1])


def _window(eqn: JaxprEqn) -> float:
    return _size(eqn.outvars[0]) * math.prod(eqn.params["window_dimensions"])


def _sort(eqn: JaxprEqn) -> float:
    """Count one comparison per level of a merge sort, as XLA does."""
    length = _shape(eqn.invars[0])[eqn.params["dimension"]]
    return _size(eqn.invars[0]) * max(1, math.ceil(math.log2(max(length, 1))))


def _fft(eqn: JaxprEqn) -> float:
    return fft_flops(max(_size(eqn.invars[0]), _size(eqn.outvars[0])), math.prod(eqn.params["fft_lengths"]))


def _factorization(eqn: JaxprEqn) -> float:
    *batch, m, n = _shape(eqn.invars[0])
    return math.prod(batch) * (factorization_flops(eqn.primitive.name, m, n) or 0.0)


def _triangular_solve(eqn: JaxprEqn) -> float:
    return _size(eqn.invars[1]) * _shape(eqn.invars[0])[-1]


def _updates(eqn: JaxprEqn) -> float:
    return _size(eqn.invars[-1])


def _select_and_scatter_add(eqn: JaxprEqn) -> float:
    """Count the gradient of max pooling: each window is searched again."""
    return _size(eqn.outvars[0]) + _size(eqn.invars[0]) * math.prod(eqn.params["window_dimensions"])


def _attention(eqn: JaxprEqn) -> float:
    """Count cuDNN's attention while it is still one operation on whole arrays."""
    (batch, num_queries, heads, dim), (_, num_keys, *_) = (_shape(atom) for atom in eqn.invars[:2])
    return attention_flops(
        batch * heads,
        num_queries,
        num_keys,
        dim,
        backward="bwd" in eqn.primitive.name,
        causal="CAUSAL" in str(eqn.params["mask_type"]),
        window=eqn.params["sliding_window_length"],
    )


_COUNTED: dict[str, Callable[[JaxprEqn], float]] = {
    "dot_product_attention_fwd_wrapper": _attention,
    "dot_product_attention_bwd_wrapper": _attention,
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
    **dict.fromkeys(("cholesky", "lu", "geqrf", "qr", "householder_product", "eigh", "svd"), _factorization),
    **dict.fromkeys(("eig", "schur", "hessenberg", "tridiagonal"), _factorization),
    "triangular_solve": _triangular_solve,
    "scatter-add": _updates,
    "scatter-sub": _updates,
    "scatter-mul": _updates,
    "scatter-min": _updates,
    "scatter-max": _updates,
    "addupdate": _updates,
}
