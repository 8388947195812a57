"""What Fourier transforms, factorizations and triangular solves compute, also in calls of cuSOLVER and cuBLAS."""

from __future__ import annotations

import json
import re
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.lax import linalg

from outlay.analysis.hlo.execute.operation import Meanings, Operation

_FLAG = re.compile(r"(\w+) = (true|false)")


def _fft(operation: Operation) -> Any:
    kind = operation.instruction.attributes["fft_type"]
    return lax.fft(operation.operands[0], kind, operation.numbers("fft_length"))


def _cholesky(operation: Operation) -> Any:
    matrix = operation.operands[0]
    is_lower = operation.instruction.attributes.get("lower", "true") == "true"
    # XLA reads one triangle only; the other holds anything.
    return _factor(matrix if is_lower else jnp.swapaxes(matrix, -1, -2).conj(), is_lower)


def _factor(lower: Any, is_lower: bool) -> Any:
    factor = linalg.cholesky(lower, symmetrize_input=False)
    return factor if is_lower else jnp.swapaxes(factor, -1, -2).conj()


def _potrf(operation: Operation) -> Any:
    matrix = operation.operands[0]
    is_lower = _flag(operation, "lower", absent=True)
    factor = _factor(matrix if is_lower else jnp.swapaxes(matrix, -1, -2).conj(), is_lower)
    return factor, jnp.zeros(matrix.shape[:-2], jnp.int32)


def _flag(operation: Operation, name: str, *, absent: bool) -> bool:
    """Return a truth value of a typed call's configuration, such as `{lower = true}`."""
    given = dict(_FLAG.findall(operation.instruction.attributes.get("backend_config", "")))
    return given.get(name, "true" if absent else "false") == "true"


def _triangular_solve(operation: Operation) -> Any:
    attributes = operation.instruction.attributes
    return _solved(
        operation,
        left_side=attributes.get("left_side") == "true",
        lower=attributes.get("lower") == "true",
        unit_diagonal=attributes.get("unit_diagonal") == "true",
        transpose_a=attributes.get("transpose_a", "NO_TRANSPOSE"),
    )


def _solved(operation: Operation, *, left_side: bool, lower: bool, unit_diagonal: bool, transpose_a: str) -> Any:
    return linalg.triangular_solve(
        *operation.operands[:2],
        left_side=left_side,
        lower=lower,
        unit_diagonal=unit_diagonal,
        transpose_a=transpose_a != "NO_TRANSPOSE",
        conjugate_a=transpose_a == "ADJOINT",
    )


def _cublas_triangular_solve(operation: Operation) -> Any:
    config = json.loads(operation.instruction.attributes["backend_config"])
    names = ("left_side", "lower", "unit_diagonal")
    flags = {name: bool(config.get(name, False)) for name in names}
    solution = _solved(operation, **flags, transpose_a=config.get("transpose_a", "NO_TRANSPOSE"))
    return solution, jnp.zeros(operation.instruction.shapes[1].dims, jnp.int8)


def _getrf(operation: Operation) -> Any:
    factors, pivots, _ = linalg.lu(operation.operands[0])
    return factors, pivots + 1, jnp.zeros(factors.shape[:-2], jnp.int32)


def _lu_pivots(operation: Operation) -> Any:
    return linalg.lu_pivots_to_permutation(operation.operands[0], operation.shape.dims[-1])


def _orgqr(operation: Operation) -> Any:
    return linalg.householder_product(*operation.operands)


def _halves_joined(operation: Operation) -> Any:
    """Join what a TPU keeps in two halves: the parts of a complex number, or the bits of a long one, low ones first."""
    low, high = operation.operands
    if jnp.issubdtype(operation.dtype, jnp.complexfloating):
        return lax.complex(low, high)
    low, high = (value.astype(jnp.uint64) for value in (low, high))
    return lax.bitcast_convert_type(low | (high << jnp.uint64(32)), operation.dtype)


SOLVING: Meanings = {
    "cholesky": _cholesky,
    "fft": _fft,
    "triangular-solve": _triangular_solve,
}

SOLVER_CALLS: Meanings = {
    "Cholesky": _cholesky,
    "X64Combine": _halves_joined,
    "__cublas$triangularSolve": _cublas_triangular_solve,
    "cu_lu_pivots_to_permutation": _lu_pivots,
    "cusolver_getrf_ffi": _getrf,
    "cusolver_orgqr_ffi": _orgqr,
    "cusolver_potrf_ffi": _potrf,
}
