"""Follow the few integers that depend on the device alone, exactly: positions of devices and what follows from them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

import numpy as np

from outlay.analysis.hlo.execute.literal import dtype_of, read_literal
from outlay.analysis.hlo.hlo_module import Instruction
from outlay.analysis.verify.static.spreads import GONE, REPLICATED, Cause, Split, Spread, Value

MAX_ENTRIES = 1 << 16
"""How many integers of all devices together are followed."""

_NUMBER = re.compile(r"\d+")
_OF_TWO: dict[str, Callable[..., np.ndarray]] = {
    "add": np.add,
    "and": np.bitwise_and,
    "divide": lambda left, right: np.where(right == 0, 0, np.trunc(left / np.where(right == 0, 1, right))),
    "maximum": np.maximum,
    "minimum": np.minimum,
    "multiply": np.multiply,
    "or": np.bitwise_or,
    "remainder": lambda left, right: np.fmod(left, np.where(right == 0, 1, right)),
    "shift-left": np.left_shift,
    "shift-right-arithmetic": np.right_shift,
    "shift-right-logical": np.right_shift,
    "subtract": np.subtract,
    "xor": np.bitwise_xor,
}
_COMPARISONS = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}


def is_followed(dtype: str, num_entries: int) -> bool:
    """Return whether so many numbers of a type are followed."""
    kind = dtype_of(dtype)
    return kind is not None and kind.kind in "iub" and num_entries <= MAX_ENTRIES


def constant(one: Instruction) -> np.ndarray | None:
    """Return the numbers of a constant, in one row; None for floats, and where the text left them out."""
    if not is_followed(one.shapes[0].dtype, math.prod(one.shapes[0].dims)):
        return None
    try:
        return read_literal(one.value, one.shapes[0])[None]
    except ValueError:
        return None


def computed(one: Instruction, operands: Sequence[np.ndarray]) -> np.ndarray | None:
    """Return the result of an operation on numbers; None for operations that are not followed.

    Along a dim where all entries are alike, the numbers may stand once.
    """
    dtype = dtype_of(one.shapes[0].dtype) if one.shapes else None
    if dtype is None or dtype.kind not in "iub" or not operands:
        return None
    dims = one.shapes[0].dims
    result = _entrywise(one, operands) if _fit_together(operands) else None
    if result is None:
        result = _shaped(one, operands, dims)
    if result is None or result.ndim != len(dims) + 1:
        return None
    if any(size not in (1, full) for size, full in zip(result.shape[1:], dims, strict=True)):
        return None
    with np.errstate(all="ignore"):
        return result.astype(dtype)


def _fit_together(operands: Sequence[np.ndarray]) -> bool:
    """Return whether numbers can meet entry by entry, and are not too many then."""
    rank = max(operand.ndim for operand in operands)
    shapes = [operand.shape if operand.ndim == rank else (len(operand),) for operand in operands]
    sizes = [max(shape[dim] for shape in shapes if dim < len(shape)) for dim in range(rank)]
    alike = all(size in (1, sizes[dim]) for shape in shapes for dim, size in enumerate(shape))
    return alike and math.prod(sizes) <= MAX_ENTRIES


def _entrywise(one: Instruction, operands: Sequence[np.ndarray]) -> np.ndarray | None:
    name, first = one.opcode, operands[0]
    if name in _OF_TWO and len(operands) == 2:
        with np.errstate(all="ignore"):
            return np.asarray(_OF_TWO[name](*operands))
    if name == "compare" and len(operands) == 2:
        return _COMPARISONS[one.attributes["direction"]](*operands)
    if name == "negate":
        return -first.astype(np.int64)
    if name == "not":
        return np.logical_not(first) if first.dtype == bool else np.bitwise_not(first)
    if name in ("convert", "copy"):
        return first
    if name == "select" and len(operands) == 3:
        chosen = first if first.ndim == operands[1].ndim else first.reshape(len(first), *(1,) * (operands[1].ndim - 1))
        return np.where(chosen, operands[1], operands[2])
    if name == "clamp" and len(operands) == 3:
        low, value, high = (_to_rank(operand, operands[1].ndim) for operand in operands)
        return np.minimum(np.maximum(value, low), high)
    return None


def _to_rank(value: np.ndarray, rank: int) -> np.ndarray:
    return value if value.ndim == rank else value.reshape(len(value), *(1,) * (rank - 1))


def _shaped(one: Instruction, operands: Sequence[np.ndarray], dims: tuple[int, ...]) -> np.ndarray | None:
    name = one.opcode
    if name in ("reshape", "bitcast") and operands[0][0].size == 1:
        return operands[0].reshape(len(operands[0]), *(1,) * len(dims))
    if name in ("reshape", "bitcast") and operands[0][0].size == math.prod(dims):
        # Dims of size one alone can have been put in another order without showing.
        same_order = sum(size > 1 for size in dims) <= 1
        return operands[0].reshape(len(operands[0]), *dims) if name == "reshape" or same_order else None
    if name == "broadcast":
        return _broadcast(one, operands[0], dims)
    if name == "dynamic-slice" and len(operands) >= 2:
        return _sliced(operands, dims)
    return None


def numbers_in(numbers: np.ndarray | None, before: Sequence[int], after: Sequence[int]) -> np.ndarray | None:
    """Return numbers after a reshape of their array; None if some stand once for several that are told apart then."""
    if numbers is None:
        return None
    if numbers[0].size == 1:
        return numbers.reshape(len(numbers), *(1,) * len(after))
    if len(numbers) * math.prod(before) > MAX_ENTRIES:
        return None
    return np.broadcast_to(numbers, (len(numbers), *before)).reshape(len(numbers), *after)


def _broadcast(one: Instruction, numbers: np.ndarray, dims: tuple[int, ...]) -> np.ndarray | None:
    """Return the numbers of a broadcast, which along its new dims stand once."""
    places = [int(place) for place in _NUMBER.findall(one.attributes.get("dimensions", ""))]
    if len(places) != numbers.ndim - 1 or places != sorted(places):
        return None
    sizes = [1] * len(dims)
    for place, size in zip(places, numbers.shape[1:], strict=True):
        sizes[place] = size
    return numbers.reshape(len(numbers), *sizes)


def _sliced(operands: Sequence[np.ndarray], dims: tuple[int, ...]) -> np.ndarray | None:
    array, *starts = operands
    if len(starts) != array.ndim - 1 or any(start.ndim != 1 for start in starts):
        return None
    rows = max(len(operand) for operand in operands)
    result = []
    for row in range(rows):
        whole = array[row % len(array)]
        places = []
        for start, size, full in zip(starts, dims, whole.shape, strict=True):
            # Where all entries are alike they may stand once.
            at = int(np.clip(int(start[row % len(start)]), 0, max(full - size, 0)))
            places.append(slice(at, at + size))
        result.append(whole[tuple(places)])
    return np.stack(result)


def value_of(numbers: np.ndarray, axes: Sequence[tuple[str, int]], cause: Cause) -> Value:
    """Return numbers as a value, which is spread over the axes along which devices have different ones."""
    rank = numbers.ndim - 1
    # A single entry, or many that are alike.
    uniform = frozenset(dim for dim in range(rank) if bool((numbers == np.take(numbers, [0], axis=dim + 1)).all()))
    if len(numbers) == 1:
        spreads = (REPLICATED,) * len(axes)
    else:
        by_axes = numbers.reshape(*(size for _, size in axes), -1)
        differing = [bool((by_axes != np.take(by_axes, [0], axis=axis)).any()) for axis in range(len(axes))]
        parts = parts_of_a_count(numbers, axes)
        spreads = tuple(
            Spread("split", frozenset((parts[axis],)), cause=cause)
            if axis in parts
            else (Spread("varying", cause=cause) if one else REPLICATED)
            for axis, one in enumerate(differing)
        )
    return Value(spreads, uniform, not numbers.any(), numbers)


def parts_of_a_count(numbers: np.ndarray, axes: Sequence[tuple[str, int]]) -> dict[int, Split]:
    """Return by axis how numbers are split that count evenly over the parts of all devices, such as sample indices.

    Examples:
        >>> parts_of_a_count(np.array([[0, 2], [4, 6], [0, 2], [4, 6]]), (("data", 2), ("model", 2)))
        {1: Split(dim=0, inner=2, below=1)}
        >>> parts_of_a_count(np.array([[0, 1], [4, 5], [0, 1], [4, 5]]), (("data", 2), ("model", 2)))
        {}
    """
    rows = numbers.reshape(len(numbers), -1).astype(np.int64)
    if rows.shape[1] == 1:  # one on each device
        step = int(min((abs(number) for number in np.diff(rows[:, 0]) if number), default=0))
        below = _finer_along(rows[:, 0], step, axes) if step else {}
        return {axis: Split(GONE, 1, times) for axis, times in below.items()}
    is_same_count = bool((rows - rows[:, :1] == rows[0] - rows[0, 0]).all())
    return count_after(numbers[:1], rows[:, 0], axes) if is_same_count else {}


def count_after(count: np.ndarray, starts: np.ndarray, axes: Sequence[tuple[str, int]]) -> dict[int, Split]:
    """Return by axis how a count is split that goes on on each device where the one before it ends.

    Args:
        count: how the devices count from their start, in one row.
        starts: where each device starts.
        axes: name and size of each axis.

    Examples:
        >>> count_after(np.array([[0, 2]]), np.array([0, 0, 4, 4]), (("data", 2), ("model", 2)))
        {0: Split(dim=0, inner=2, below=1)}
    """
    counting = [dim for dim, size in enumerate(count.shape[1:]) if size > 1]
    row = count.reshape(-1).astype(np.int64)
    if len(counting) != 1 or row[0] == row[1] or (np.diff(row) != row[1] - row[0]).any():
        return {}
    below = _finer_along(starts, int(row[1] - row[0]) * len(row), axes)
    return {axis: Split(counting[0], len(row), times) for axis, times in below.items()}


def _finer_along(starts: np.ndarray, step: int, axes: Sequence[tuple[str, int]]) -> dict[int, int]:
    """Return for each axis along which starts grow over how many devices they grow within one of its steps."""
    grid = axis_steps(starts, axes)
    below, expected = {}, 1
    for _, axis in sorted((moved // step, axis) for axis, moved in enumerate(grid[1] if grid else ()) if moved):
        if grid is None or grid[1][axis] != step * expected:
            return {}
        below[axis] = expected
        expected *= axes[axis][1]
    return below


def axis_steps(numbers: np.ndarray, axes: Sequence[tuple[str, int]]) -> tuple[int, tuple[int, ...]] | None:
    """Return the start and, for each axis, the step of numbers that grow evenly along all axes; None for others.

    Args:
        numbers: one for each device.
        axes: name and size of each axis.

    Examples:
        >>> axis_steps(np.array([0, 8, 16, 24]), (("data", 2), ("model", 2)))
        (0, (16, 8))
        >>> axis_steps(np.array([0, 8, 16, 16]), (("data", 2), ("model", 2))) is None
        True
    """
    sizes = [size for _, size in axes]
    if len(numbers) == 1:
        return int(numbers[0]), (0,) * len(sizes)
    grid = numbers.astype(np.int64).reshape(sizes)
    first = int(grid.flat[0])
    steps = []
    expected = np.full(sizes, first, np.int64)
    for axis, size in enumerate(sizes):
        where = tuple(1 if at == axis else 0 for at in range(len(sizes)))
        steps.append(int(grid[where]) - first if size > 1 else 0)
        expected += np.arange(size).reshape([-1 if at == axis else 1 for at in range(len(sizes))]) * steps[-1]
    return (first, tuple(steps)) if np.array_equal(grid, expected) else None


def follows_grid(numbers: np.ndarray, sizes: Sequence[int]) -> bool:
    """Return whether numbers of devices grow evenly along all axes, or along parts of them, up to a bound.

    Of a dim that devices do not divide, the last ones begin at its end.

    Examples:
        >>> follows_grid(np.array([0, 8, 0, 8, 4, 12, 4, 12]), (8,)), follows_grid(np.array([0, 0, 16, 0]), (2, 2))
        (True, False)
    """
    digits = [factor for size in sizes for factor in _factors(size)]
    grid = numbers.reshape(digits)
    expected = np.full(digits, int(grid.flat[0]) if digits else 0, np.int64)
    for digit, size in enumerate(digits):
        second = int(grid[tuple(int(at == digit) for at in range(len(digits)))])
        steps = np.arange(size).reshape([-1 if at == digit else 1 for at in range(len(digits))])
        expected = expected + steps * (second - int(grid.flat[0]))
    return bool(np.array_equal(np.minimum(expected, grid.max()), grid))


def _factors(size: int) -> list[int]:
    factors, factor = [], 2
    while size > 1:
        while size % factor == 0:
            factors.append(factor)
            size //= factor
        factor += 1
    return factors
