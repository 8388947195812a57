"""A value that one device keeps, while the others take zeros in its place: a summand, whose sum is the value."""

from __future__ import annotations

import numpy as np

from outlay.analysis.verify.static.spreads import Spread, Value
from outlay.analysis.verify.static.visit import Visit


def on_one_device(visit: Visit) -> Value | None:
    """Return the result of a choice, by a device's number, between a value and zeros; None for any other choice.

    A value that all have is afterwards a summand on each. So partitioners add to an array by parts: one device begins
    with the array, the others with zeros. Of summands, those of the other devices are lost.
    """
    if len(visit.arrays) != 3:
        return None
    condition, one, other = visit.arrays
    if one.is_zero and other.is_zero:
        every = frozenset(range(len(visit.shape.dims)))
        return Value(visit.replicated.spreads, every, is_zero=True)
    if one.is_zero == other.is_zero or condition.numbers is None:
        return None
    value = other if one.is_zero else one
    axes = _axes_of_one(visit, condition.numbers, keeps_true=other.is_zero)
    held = [value.spreads[axis] for axis in axes]
    if not axes or not all(one.kind == "replicated" or one.kind == "partial" for one in held):
        return None
    spreads = list(value.spreads)
    for axis, spread in zip(axes, held, strict=True):
        if spread.kind == "replicated":
            spreads[axis] = Spread("partial", combiner="add", is_on_one=True, cause=visit.here)
        elif spread.combiner != "add":
            return None
        elif not spread.is_on_one and visit.reading.by_compiler:
            words = "is kept by one device only, before it is summed: the summands of the others are lost"
            visit.note("sum missing", axis, spread, words)
    return Value(tuple(spreads), value.uniform)


def _axes_of_one(visit: Visit, numbers: np.ndarray, *, keeps_true: bool) -> list[int]:
    """Return the axes along which exactly one device keeps the value; none if it is not one, or not by the device."""
    sizes = [size for _, size in visit.reading.axes]
    if numbers.size != len(numbers) or len(numbers) != np.prod(sizes):
        return []
    keeps = (numbers.reshape(sizes) != 0) == keeps_true
    axes = [axis for axis in range(len(sizes)) if (keeps != np.take(keeps, [0], axis=axis)).any()]
    return axes if axes and (keeps.sum(axis=tuple(axes)) == 1).all() else []
