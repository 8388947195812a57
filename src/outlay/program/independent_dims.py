"""Name the dims over which an operation treats each entry by itself: a device can compute its own entries.

A dim is named by a *factor*, which operands and results share: of `fft` over the last dim of (samples, channels, time)
the factors are 0 and 1; of attention they are its samples and its heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax

from outlay.core.primitives import KINDS

FFT = "fft"
CUMULATIVE = KINDS["cumulative"]

_MATRIX = "cholesky eig eigh geqrf hessenberg householder_product lu ormqr qr schur svd triangular_solve tridiagonal"
_LAST_DIMS = {**dict.fromkeys(_MATRIX.split(), 2), "tridiagonal_solve": 1, "lu_pivots_to_permutation": 1}
"""How many dims of its first operand, the last ones, an operation of linear algebra goes along."""

# The names of the parameter in several versions of JAX.
_SELECTIONS = {"top_k": ("axis", "operand_dimension"), "approx_top_k": ("reduction_dimension",)}
"""By which parameter an operation that selects entries says along which dim."""

_ATTENTION_FORWARD, _ATTENTION_BACKWARD = "dot_product_attention_fwd_wrapper", "dot_product_attention_bwd_wrapper"

Factors = tuple[Hashable, ...]


# Before 0.12, XLA splits complex FFTs along a split dim, and ends the process where the dim's length is no multiple of
# the square of the number of devices.
_ENDS_AT_FFT = jax.__version_info__ < (0, 12)


def is_fft_that_ends_xla(eqn: Any, num_along: Callable[[int], int], platform: str) -> bool:
    """Return whether the compiler ends the process at an operation, an FFT along a split dim.

    Args:
        eqn: the operation.
        num_along: over how many devices a dim of its operand is split, or may be.
        platform: that of the devices; the compiler for TPUs gathers such a dim.
    """
    if not _ENDS_AT_FFT or platform == "tpu" or eqn.primitive.name != FFT:
        return False
    lengths, shape = eqn.params["fft_lengths"], _shape(eqn.invars[0])
    if not jax.numpy.issubdtype(eqn.invars[0].aval.dtype, jax.numpy.complexfloating):
        return False
    parts = [(shape[dim], num_along(dim)) for dim in range(len(shape) - len(lengths), len(shape))]
    return any(num > 1 and size % num**2 for size, num in parts)


class Independent(NamedTuple):
    """The factors of each operand's dims and of each result's; None for a dim along which the operation goes."""

    operands: Sequence[Factors]
    results: Sequence[Factors]


def independent(eqn: Any) -> Independent | None:
    """Return the factors of an operation; None for one that is not listed here."""
    name, params = eqn.primitive.name, eqn.params
    if name in (_ATTENTION_FORWARD, _ATTENTION_BACKWARD):
        return _attention(eqn)
    num_dims = len(_shape(eqn.invars[0])) if eqn.invars else 0
    if name == FFT:
        along = range(num_dims - len(params["fft_lengths"]), num_dims)
    elif name in _LAST_DIMS:
        along = range(num_dims - _LAST_DIMS[name], num_dims)
    elif name in CUMULATIVE:
        along = [params["axis"]]
    elif name in _SELECTIONS:
        along = [next((params[key] for key in _SELECTIONS[name] if key in params), -1) % num_dims]
    else:
        return None
    batch = [dim for dim in range(num_dims) if dim not in along]

    def factors(atom: Any) -> Factors:
        return tuple(dim if dim in batch else None for dim in range(len(_shape(atom))))

    return Independent([factors(atom) for atom in eqn.invars], [factors(atom) for atom in eqn.outvars])


_PAGES = slice(8, 10)
"""The operands of cuDNN's attention that say where pages of keys and values are."""


def _attention(eqn: Any) -> Independent | None:
    """Return the factors of cuDNN's attention: samples and heads, unless operands mix them."""
    params, shapes = eqn.params, [_shape(atom) for atom in eqn.invars]
    heads_first = params["layout"] == 1  # (B, N, T, H) in place of (B, T, N, H)
    of_heads: Factors = ("samples", "heads", None, None) if heads_first else ("samples", None, "heads", None)
    of_scores = ("samples", "heads", None)
    bias: Factors = tuple(
        factor if size > 1 else None for factor, size in zip((*of_scores, None), shapes[3], strict=False)
    )
    of_samples: list[Factors] = [
        ("samples", None)[: len(shape)] if math.prod(shape) else (None,) * len(shape) for shape in shapes[4:8]
    ]
    operands: list[Factors] = [of_heads, of_heads, of_heads, bias, *of_samples]
    operands += [(None,) * len(shape) for shape in shapes[_PAGES]]
    if eqn.primitive.name == _ATTENTION_FORWARD:
        results = list[Factors]((of_heads, of_scores))[: len(eqn.outvars)]
        scores = eqn.outvars[1:2]
    else:
        operands += [of_scores, of_heads, of_heads]
        results = [of_heads] * 3 + [bias] * (len(eqn.outvars) - 3)
        scores = eqn.invars[10:11]
    is_paged = any(math.prod(shape) for shape in shapes[_PAGES])
    is_packed = any(_shape(atom)[0] != shapes[0][0] for atom in scores)
    # A gradient of a bias that samples or heads share is a sum over them.
    is_summed = len(results) > 3 and set(bias) != {"samples", "heads", None}
    return None if is_paged or is_packed or is_summed else Independent(operands, results)


def _shape(atom: Any) -> Sequence[int]:
    return tuple(getattr(atom.aval, "shape", ()))
