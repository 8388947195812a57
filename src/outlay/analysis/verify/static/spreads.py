"""How the devices of a mesh hold a value: for each mesh axis the same, a part, a summand, or something else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np

from outlay.analysis.hlo.hlo_module import Instruction

Kind = Literal["replicated", "split", "partial", "varying", "unknown"]


@dataclass(frozen=True)
class Cause:
    """The instruction at which devices began to hold different numbers."""

    computation: str
    instruction: Instruction


GONE, SUMMED = -1, -2
NOWHERE = frozenset((GONE, SUMMED))
"""What stands in a reading in place of a dim."""


class Split(NamedTuple):
    """One reading of a value that is split over an axis.

    Attributes:
        dim: the dim of the device's array; `GONE` if it had one entry on each device, and was left out; `SUMMED` if
            the devices may have a summand each instead, of a sum over a dim of which they had one entry each.
        inner: how many of its last entries, counted within the dim, lie below the split: all of them, unless another
            dim was merged in front.
        below: over how many devices, along other axes, the same place of the dim is split more finely.
    """

    dim: int
    inner: int
    below: int


@dataclass(frozen=True)
class Spread:
    """How the devices along one mesh axis hold a value.

    Attributes:
        kind: `replicated`: the same on all; `split`: each a part along a dim; `partial`: each a summand of it;
            `varying`: different numbers, of which nothing else is known; `unknown`: it may be the same or not.
        splits: of a split value, the readings that are possible; a dim of size one may or may not be it.
        combiner: of a partial value, what is still missing: `add`, `maximum`, `minimum`, ...
        is_loose: whether a varying value may be the same in part, or with others: what came from other devices,
            and what was put together from parts that vary and parts that do not.
        is_on_one: whether of a partial value one device may have all of it, and the others nothing.
        cause: where they began to differ.
    """

    kind: Kind
    splits: frozenset[Split] = frozenset()
    combiner: str = ""
    is_loose: bool = False
    is_on_one: bool = False
    cause: Cause | None = field(default=None, compare=False, repr=False)


REPLICATED = Spread("replicated")
UNKNOWN = Spread("unknown")


def split_along(splits: Iterable[Split], cause: Cause | None) -> Spread:
    """Return a split with these readings; without any it is only known to vary."""
    readings = frozenset(splits)
    return Spread("split", splits=readings, cause=cause) if readings else Spread("varying", cause=cause)


def summand_of(spreads: Sequence[Spread]) -> Spread:
    """Return what partial values are once they are added."""
    first = spreads[0]
    return first if first.is_on_one == all(one.is_on_one for one in spreads) else replace(first, is_on_one=False)


def mixed(spreads: Iterable[Spread], cause: Cause | None = None) -> Spread:
    """Return how the result of an unknown operation is spread.

    Numbers that differ differ afterwards, too, unless several meet of which one is loose.
    """
    differing = [one for one in spreads if one.kind != "replicated"]
    if not differing:
        return REPLICATED
    is_loose = any(one.is_loose for one in differing)
    if any(one.kind == "unknown" for one in differing) or (is_loose and len(differing) > 1):
        return UNKNOWN
    return Spread("varying", is_loose=is_loose, cause=differing[0].cause or cause)


@dataclass(frozen=True, eq=False)
class Value:
    """An array as the devices hold it.

    Attributes:
        spreads: one for each mesh axis, in the mesh's order.
        uniform: dims along which all entries are the same number.
        is_zero: whether it is zero everywhere.
        numbers: of a few integers that depend on the device alone, what each device has: an array with the devices
            first, or with one row if all have the same.
        parameter: the number of the program's parameter that it is, as it came; None if it was computed.
        is_unscaled: whether it is the result of a product, a reduction or an exchange, or a parameter, as it came: no
            multiple of a value that all have, which may stand for a sum of copies of it.
        parts: of arrays that were joined to one, each with where it begins and ends, so that it can be taken out again.
        shift: of integers from which each device has subtracted a number of its own, such as of places in a whole array
            that it turns into places in its part: these numbers, by device.
        cut: of a slice along one dim, that of which it is one, with where it begins and ends.
    """

    spreads: tuple[Spread, ...]
    uniform: frozenset[int] = frozenset()
    is_zero: bool = False
    numbers: np.ndarray | None = None
    parameter: int | None = None
    is_unscaled: bool = False
    parts: tuple[Part, ...] = ()
    shift: np.ndarray | None = None
    cut: Part | None = None

    def same_as(self, other: Value) -> bool:
        """Return whether the same is known of both."""
        if (self.spreads, self.uniform, self.is_zero) != (other.spreads, other.uniform, other.is_zero):
            return False
        if (self.parameter, self.is_unscaled) != (other.parameter, other.is_unscaled):
            return False
        return _same_numbers(self.numbers, other.numbers) and _same_numbers(self.shift, other.shift)

    def with_spread(self, axis: int, spread: Spread) -> Value:
        """Return it with another spread over one axis."""
        spreads = (*self.spreads[:axis], spread, *self.spreads[axis + 1 :])
        return replace(self, spreads=spreads, numbers=None, is_zero=False, parameter=None, shift=None)


def _same_numbers(one: np.ndarray | None, other: np.ndarray | None) -> bool:
    return one is other if one is None or other is None else np.array_equal(one, other)


class Part(NamedTuple):
    """An array that was joined with others along a dim.

    Attributes:
        dim: the dim.
        start: where it begins.
        end: where it ends.
        value: the array.
    """

    dim: int
    start: int
    end: int
    value: Value


Tree = Value | tuple["Tree", ...]
"""The value of an instruction: an array, or a tuple of such."""


def same_trees(one: Tree, other: Tree) -> bool:
    """Return whether the same is known of two values."""
    if isinstance(one, Value) or isinstance(other, Value):
        return isinstance(one, Value) and isinstance(other, Value) and one.same_as(other)
    return len(one) == len(other) and all(map(same_trees, one, other))


def joined(one: Tree, other: Tree, *, in_loop: bool) -> Tree:
    """Return what is known of a value that is one of two.

    Args:
        one: the first; of a loop what it starts with.
        other: the second; of a loop what a round leaves.
        in_loop: whether the second is what counts if they differ, as after the last round of a loop.
    """
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        return tuple(joined(left, right, in_loop=in_loop) for left, right in zip(one, other, strict=True))
    if not isinstance(one, Value) or not isinstance(other, Value):
        return one if isinstance(one, Value) else other
    spreads = tuple(
        _joined_spread(left, right, one, other, in_loop) for left, right in zip(one.spreads, other.spreads, strict=True)
    )
    same_numbers = one.numbers is not None and other.numbers is not None and np.array_equal(one.numbers, other.numbers)
    return Value(
        spreads,
        one.uniform & other.uniform,
        one.is_zero and other.is_zero,
        one.numbers if same_numbers else None,
        one.parameter if one.parameter == other.parameter else None,
        one.is_unscaled and other.is_unscaled,
    )


def _joined_spread(left: Spread, right: Spread, one: Value, other: Value, in_loop: bool) -> Spread:
    if left == right:
        return left
    kinds = {left.kind, right.kind}
    if "unknown" in kinds:
        return UNKNOWN
    if kinds == {"replicated", "partial"}:
        whole, part = (one, right) if left.kind == "replicated" else (other, left)
        if whole.is_zero:
            return part
    elif kinds == {"replicated", "split"}:
        whole, part = (one, right) if left.kind == "replicated" else (other, left)
        if readings := [split for split in part.splits if split.dim in whole.uniform]:
            return split_along(readings, part.cause)
    elif kinds == {"partial"} and left.combiner == right.combiner:
        return replace(left, is_on_one=left.is_on_one or right.is_on_one)
    elif kinds == {"split"}:
        return split_along(left.splits & right.splits, right.cause)
    if "replicated" in kinds and not in_loop:
        return UNKNOWN
    differing = right if right.kind != "replicated" else left
    return Spread("varying", is_loose=left.is_loose or right.is_loose, cause=differing.cause)
