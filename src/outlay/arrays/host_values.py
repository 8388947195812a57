"""The one door for values that come in: what JAX holds is converted, alike everywhere, and the rest refused by leaf.

As `jax.numpy.asarray` has it, a value keeps its dtype, and one of 64 bits gets 32 unless `jax_enable_x64` is set.
Unlike there, a number that the narrower dtype cannot hold is refused: integers would wrap, floats become infinite.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from outlay.core.array_leaves import non_arrays
from outlay.core.error_types import Problem
from outlay.core.paths import flatten_paths, under
from outlay.core.quantities import counted

_X64 = "jax.config.update('jax_enable_x64', True) at the start of the program"
_NO_NUMBERS = {"O": "Python objects", "S": "bytes", "U": "text", "M": "dates", "m": "durations"}
_IS_JAX = (jax.Array, Tracer, jax.ShapeDtypeStruct)


NOT_AN_ARRAY = "not an array"
"""The kind of problem of a value that is none."""


class Refused(Exception):
    """A value cannot be held by JAX as it is.

    Args:
        kind: the kind of `Problem`.
        what: what is wrong with it.
        fix: the edit that helps.
    """

    def __init__(self, kind: str, what: str, fix: str) -> None:
        super().__init__(kind, what, fix)

    def at(self, where: str) -> Problem:
        """Return it as the problem of a value somewhere."""
        kind, what, fix = self.args
        return Problem(kind, where or "the value itself", what, fix)


def take_tree(tree: Any, root: str = "") -> tuple[Any, list[Problem]]:
    """Return a tree with each value as JAX takes it, and a problem for every value that JAX cannot hold.

    Args:
        tree: arrays and numbers, in any pytree. JAX's own arrays stay as they are.
        root: what stands in front of the paths of problems.

    Example:
        >>> tree, problems = take_tree({"x": np.arange(2, dtype=">i8"), "id": np.array([2**40])})
        >>> str(tree["x"].dtype), [problem.where for problem in problems]
        ('int32', ['id'])
    """
    leaves, structure = jax.tree.flatten(tree)
    if all(isinstance(leaf, _IS_JAX) for leaf in leaves):
        return tree, []
    refused: dict[int, Refused] = {}
    for number, leaf in enumerate(leaves):
        try:
            leaves[number] = take(leaf)
        except Refused as odd:
            refused[number] = odd
    paths = [under(root, path) for path, _ in flatten_paths(tree)[0]] if refused else []
    problems = [odd.at(paths[number] or "the tree itself") for number, odd in refused.items()]
    return structure.unflatten(leaves), problems


def hold(what: str, problems: list[Problem]) -> str:
    """Say that something holds values that were refused.

    Args:
        what: what holds them, and a verb, such as `the batch holds`.
        problems: one per value.
    """
    if all(problem.kind == NOT_AN_ARRAY for problem in problems):
        return f"{what} {counted(len(problems), 'leaf that is not an array', 'leaves that are not arrays')}:"
    return f"{what} {counted(len(problems), 'value')} that JAX cannot hold as they are:"


def take(value: Any) -> Any:
    """Return one value as JAX takes it: an array in a native dtype that JAX has now, or a number of Python.

    Raises:
        Refused: JAX has no such dtype, or it is too narrow for the value, or values are masked.
    """
    if isinstance(value, _IS_JAX):
        return value
    plain = _plain(value)
    if isinstance(plain, bool | int | float | complex) and not isinstance(plain, np.generic):
        _narrowed(np.asarray(plain))
        return plain
    return _narrowed(plain) if isinstance(plain, np.ndarray | np.generic) else plain


def take_array(value: Any, *, keeps_64_bits: bool = False) -> Any:
    """Return one value as an array, where a tree would not do: lists of numbers are arrays here, too.

    Args:
        value: an array, a number, or nested lists of numbers.
        keeps_64_bits: leave the dtype as it is, for what stays on the host.

    Raises:
        Refused: as `take` does; or rows are of different lengths.
    """
    if isinstance(value, list | tuple | str | bytes):
        value = _from_rows(value)
    if not isinstance(value, _IS_JAX):
        value = _plain(value)
        value = _native(np.asarray(value)) if keeps_64_bits else _narrowed(np.asarray(value))
    return value


def check_dtype(dtype: Any) -> None:
    """Raise for a dtype whose values JAX cannot hold.

    Raises:
        Refused: it is of records, text, objects or the like.
    """
    dtype = np.dtype(dtype)
    if dtype.names:
        fix = f"give its fields as arrays of their own: x[{dtype.names[0]!r}]"
        raise Refused(NOT_AN_ARRAY, f"records of {', '.join(dtype.names)}, which JAX has not", fix)
    if dtype.kind in _NO_NUMBERS:
        fix = "np.array(x.tolist(), np.float32), if all are numbers" if dtype.kind == "O" else "give its numbers"
        raise Refused(NOT_AN_ARRAY, f"{_NO_NUMBERS[dtype.kind]} ({dtype}), which JAX has not", fix)
    is_number = jnp.issubdtype(dtype, np.number) or dtype == np.bool_
    if not is_number or dtype in (np.dtype(np.longdouble), np.dtype(np.clongdouble)):
        raise Refused(NOT_AN_ARRAY, f"dtype {dtype}, which JAX has not", "x.astype(np.float64)")


def _plain(value: Any) -> Any:
    """Return a value as an array or a number without a mask; what may be a shape is returned as it is."""
    if isinstance(value, np.ma.MaskedArray):
        return _unmasked(value)
    if isinstance(value, np.ndarray | np.generic | bool | float | complex):
        return value
    if isinstance(value, int):
        if not np.iinfo(np.int64).min <= value <= np.iinfo(np.uint64).max:
            raise Refused("out of range", f"{value} needs more than 64 bits", "a smaller number")
        return value
    return _as_numpy(value)


def _as_numpy(value: Any) -> Any:
    """Return what another library's array, or a buffer, holds; a leaf that may be a shape is returned as it is."""
    if hasattr(value, "__array__") or isinstance(value, memoryview | bytearray):
        try:
            return np.asarray(value)
        except Exception as error:  # of any library: PyTorch refuses bfloat16, and what needs gradients
            if not hasattr(value, "__dlpack__"):
                raise _unreadable(value, error) from error
    if hasattr(value, "__dlpack__"):
        try:
            return np.asarray(jnp.from_dlpack(value))
        except Exception as error:
            raise _unreadable(value, error) from error
    if problems := non_arrays(value):
        raise Refused(problems[0].kind, problems[0].what, problems[0].fix)
    return value


def _unreadable(value: Any, error: Exception) -> Refused:
    words = (str(error).splitlines() or [""])[0]
    return Refused(NOT_AN_ARRAY, f"a {type(value).__name__}: {type(error).__name__}: {words:.120}", "give NumPy arrays")


def _from_rows(rows: Any) -> np.ndarray:
    try:
        are_masked = any(isinstance(row, np.ma.MaskedArray) for row in rows)
        return np.ma.stack(rows) if are_masked else np.asarray(rows)  # the latter drops masks
    except (ValueError, TypeError) as error:  # NumPy: "inhomogeneous shape"
        lengths = sorted({len(row) for row in rows if hasattr(row, "__len__")})
        what = (
            f"rows of different lengths, {lengths[0]} to {lengths[-1]}"
            if len(lengths) > 1
            else "no array: " + str(error)
        )
        raise Refused(NOT_AN_ARRAY, what, "pad them to one length") from error


def _unmasked(value: np.ma.MaskedArray) -> np.ndarray:
    num = int(np.ma.count_masked(value))
    if num:
        what = f"{num} of {value.size} values are masked, and JAX has no masks"
        raise Refused("masked", what, "x.filled(0), and np.ma.getmaskarray(x) as an array of its own")
    return np.asarray(value.data)


def _native(array: Any) -> Any:
    check_dtype(array.dtype)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _narrowed(array: Any) -> Any:
    array = _native(array)
    return narrowed(array, jax.dtypes.canonicalize_dtype(array.dtype), _X64)


def narrowed(array: Any, held: Any, wider: str) -> Any:
    """Return an array in a narrower dtype of its kind.

    Args:
        array: the array, or a scalar of NumPy.
        held: the dtype that it gets.
        wider: the edit that makes that dtype a wider one.

    Raises:
        Refused: the dtype cannot hold one of its numbers.
    """
    dtype = array.dtype
    if held == dtype:
        return array
    with np.errstate(over="ignore"):
        narrow = array.astype(held)
    if jnp.issubdtype(held, jnp.integer):
        limits = jnp.iinfo(held)
        is_odd = np.asarray((array < limits.min) | (array > limits.max))
        fix = f"{wider}; or numbers from {limits.min} to {limits.max}, such as x % 2**31"
    else:
        is_odd = np.asarray(np.isfinite(array) & ~np.isfinite(narrow))
        fix = f"{wider}; or scale it to at most {float(jnp.finfo(held).max):.2g}"
    if is_odd.any():
        first = tuple(int(number) for number in np.argwhere(is_odd)[0])
        at = f" at [{', '.join(map(str, first))}]" if first else ""
        more = f" (and {int(is_odd.sum()) - 1} more)" if is_odd.sum() > 1 else ""
        what = f"{dtype} {array[first]!s}{at}{more}, which {held} cannot hold"
        raise Refused("out of range", what, fix)
    return narrow
