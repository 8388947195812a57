"""How a plan says that arrays are spread, and where a program's results are spread in another way."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from jax.sharding import NamedSharding

from outlay.analysis.hlo.hlo_module import Shape
from outlay.analysis.verify.static.spreads import NOWHERE, REPLICATED, UNKNOWN, Cause, Split, Spread, Value


def planned(sharding: Any, shape: Shape, axes: Sequence[tuple[str, int]], cause: Cause | None = None) -> Value:
    """Return how an array with a sharding is spread.

    Args:
        sharding: of the whole array; if it names no mesh axes, nothing is known.
        shape: the device's part of it.
        axes: name and size of each mesh axis.
        cause: where it comes into the program.
    """
    if not isinstance(sharding, NamedSharding):
        whole = bool(getattr(sharding, "is_fully_replicated", False))
        return Value((REPLICATED if whole else UNKNOWN,) * len(axes))
    sizes = dict(axes)
    splits: dict[str, Split] = {}
    for dim, names in enumerate(sharding.spec):
        listed = (names,) if isinstance(names, str) else tuple(names or ())
        for at, name in enumerate(listed):
            below = math.prod(sizes.get(other, 1) for other in listed[at + 1 :])
            if dim < len(shape.dims) and sizes.get(name, 1) > 1:
                splits[name] = Split(dim, shape.dims[dim], below)
    return Value(
        tuple(
            Spread("split", frozenset((splits[name],)), cause=cause) if name in splits else REPLICATED
            for name, _ in axes
        )
    )


def as_planned(result: Value, plan: Value, axis: int) -> bool | None:
    """Return whether a result is spread over an axis as planned; None if that is not known."""
    held, expected = result.spreads[axis], plan.spreads[axis]
    if "unknown" in (held.kind, expected.kind) or held.is_loose:
        return None
    if expected.kind == "replicated":
        return held.kind == "replicated"
    (part,) = expected.splits
    if held.kind == "split":
        return part in held.splits or (None if any(split.dim in NOWHERE for split in held.splits) else False)
    if held.kind == "varying":
        return None
    return held.kind == "replicated" and (part.dim in result.uniform or result.is_zero)


def in_words(spread: Spread, axis: str) -> str:
    """Say how devices along an axis hold an array.

    Examples:
        >>> in_words(Spread("split", frozenset({Split(0, 4, 1)})), "data")
        "split over 'data' along dim 0"
    """
    if spread.kind == "split":
        dims = sorted({split.dim for split in spread.splits} - NOWHERE)
        if not dims:
            return f"split over {axis!r}"
        return f"split over {axis!r} along dim {' or '.join(map(str, dims))}"
    words: Mapping[str, str] = {
        "replicated": f"the same on all devices along {axis!r}",
        "partial": f"on each device along {axis!r} a summand of what it should be",
        "varying": f"different on the devices along {axis!r}",
        "unknown": f"along {axis!r} not known",
    }
    return words[spread.kind]
