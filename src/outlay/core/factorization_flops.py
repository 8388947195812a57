"""FLOPs of Fourier transforms and of dense linear algebra, by the sizes of one transform or matrix.

Source of the second: Golub and Van Loan, Matrix Computations, 4th edition: sections 3.2, 4.2, 5.2, 7.5, 8.3 and 8.6.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence


def fft_flops(num_points: float, length: int) -> float:
    """Return the FLOPs of Fourier transforms: 5 n log2 n of each, the usual count of a radix-2 transform.

    Args:
        num_points: the entries of all transforms together; complex ones, or real ones if those are more.
        length: the entries of one.

    >>> fft_flops(64, 8)
    960.0
    """
    return 5.0 * num_points * math.log2(max(length, 2))


def factorization_flops(name: str, m: int, n: int) -> float | None:
    """Return the FLOPs of an operation on one m x n matrix; None for one that is not listed.

    Args:
        name: as JAX names it, such as `cholesky`.
        m: rows.
        n: columns.

    >>> factorization_flops("cholesky", 6, 6), factorization_flops("lu", 6, 6)
    (72.0, 144.0)
    """
    k, larger = min(m, n), max(m, n)
    match name:
        case "cholesky":
            return n**3 / 3
        case "lu":
            return 2 * m * n * k - (m + n) * k**2 + 2 * k**3 / 3
        case "geqrf" | "householder_product":
            return 2 * larger * k**2 - 2 * k**3 / 3
        case "qr":  # the reflections, and their product
            return 4 * larger * k**2 - 4 * k**3 / 3
        case "eigh":  # with vectors
            return 9.0 * n**3
        case "svd":  # with vectors of both sides
            return 4.0 * larger**2 * k + 8.0 * larger * k**2 + 9.0 * k**3
        case "eig" | "schur":
            return 25.0 * n**3
        case "hessenberg":
            return 10 * n**3 / 3
        case "tridiagonal":
            return 4 * n**3 / 3
    return None


_ROUTINES = {
    "potrf": "cholesky",
    "getrf": "lu",
    "geqrf": "geqrf",
    "orgqr": "householder_product",
    "ungqr": "householder_product",
    "syev": "eigh",
    "heev": "eigh",
    "gesdd": "svd",
    "gesvd": "svd",
    "gees": "schur",
    "geev": "eig",
    "gehrd": "hessenberg",
    "sytrd": "tridiagonal",
    "hetrd": "tridiagonal",
}
_SOLVES = ("trsm", "__cublas$triangularSolve")
# LAPACK's names begin with the letter of a dtype.
_ROUTINE = re.compile(rf"(?:lapack_[sdcz]|cusolver_|hipsolver_)({'|'.join(_ROUTINES)})")


def library_flops(called: str, operands: Sequence[Sequence[int]]) -> float | None:
    """Return the FLOPs of a call of LAPACK, cuSOLVER or cuBLAS on a batch of matrices; None for any other.

    Args:
        called: the name of the function, such as `lapack_spotrf_ffi`.
        operands: the dims of its operands.

    >>> library_flops("lapack_spotrf_ffi", [(2, 6, 6)]), library_flops("cusolver_syevd_ffi", [(4, 4)])
    (144.0, 576.0)
    """
    if any(solve in called for solve in _SOLVES) and len(operands) > 1:
        return float(math.prod(operands[1]) * operands[0][-1])
    match = _ROUTINE.match(called)
    if match is None or not operands or len(operands[0]) < 2:
        return None
    *batch, m, n = operands[0]
    one = factorization_flops(_ROUTINES[match[1]], m, n)
    return None if one is None else float(math.prod(batch) * one)
