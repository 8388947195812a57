"""How values are spread after matrix products, convolutions and attention, those of libraries included.

A product over a dim that both operands have a part of leaves each device with a summand of the result.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from outlay.analysis.verify.static.spreads import GONE, REPLICATED, Split, Spread, Tree, Value, mixed, split_along
from outlay.analysis.verify.static.visit import Rules, Visit

Places = Mapping[int, int]
"""From dims of an operand to dims of the result."""


def product(
    visit: Visit,
    left: Value,
    right: Value,
    contracted: Sequence[tuple[int, int]],
    left_places: Places,
    right_places: Places,
) -> Value:
    """Return how a product is spread.

    Args:
        visit: the instruction.
        left: the one operand.
        right: the other.
        contracted: dims of both that are summed over.
        left_places: where the other dims of the one are in the result; those of batches are in both.
        right_places: likewise of the other.
    """
    batched = {
        (one, other): place
        for one, place in left_places.items()
        for other, another in right_places.items()
        if place == another
    }

    def rule(axis: int, held: list[Spread]) -> Spread:
        return _spread(visit, axis, held, (left, right), contracted, (left_places, right_places), batched)

    spreads = visit.by_axis(rule, (left, right))
    uniform = {left_places[dim] for dim in left.uniform if dim in left_places}
    uniform ^= {right_places[dim] for dim in right.uniform if dim in right_places}
    both = set(batched.values())
    # Products with the same operand may have been joined to one.
    parts = [
        part._replace(
            dim=left_places[part.dim],
            value=product(visit, part.value, right, contracted, left_places, right_places),
        )
        for part in left.parts
        if part.dim in left_places and left_places[part.dim] not in both
    ] or [
        part._replace(
            dim=right_places[part.dim],
            value=product(visit, left, part.value, contracted, left_places, right_places),
        )
        for part in right.parts
        if part.dim in right_places and right_places[part.dim] not in both
    ]
    uniform = frozenset(dim for dim in uniform if dim not in both)
    return Value(spreads, uniform, is_unscaled=not (left.is_zero or right.is_zero), parts=tuple(parts))


def _spread(
    visit: Visit,
    axis: int,
    held: list[Spread],
    values: tuple[Value, Value],
    contracted: Sequence[tuple[int, int]],
    places: tuple[Places, Places],
    batched: Mapping[tuple[int, int], int],
) -> Spread:
    kinds = [one.kind for one in held]
    if kinds in (["partial", "replicated"], ["replicated", "partial"]):
        one = held[kinds.index("partial")]
        return one if one.combiner == "add" else mixed(held, visit.here)
    if "partial" in kinds:
        return visit.used_whole(axis, held)
    if any(kind not in ("replicated", "split") for kind in kinds):
        return mixed(held, visit.here)
    if kinds == ["split", "split"]:
        results = set(_of_two_splits(held[0].splits, held[1].splits, contracted, batched))
    else:
        side = kinds.index("split")
        shared = {pair[side]: pair[1 - side] for pair in batched}
        pairs = {pair[side]: pair[1 - side] for pair in contracted}
        results = set(_of_one_split(held[side].splits, places[side], pairs, shared, values[1 - side].uniform))
    if results == {None}:
        return Spread("partial", combiner="add", cause=visit.here)
    if results and None not in results:
        return split_along((one for one in results if one is not None), held[0].cause or held[1].cause)
    return mixed([Spread("varying", cause=visit.here)], visit.here)


def _of_two_splits(
    left: Iterable[Split],
    right: Iterable[Split],
    contracted: Sequence[tuple[int, int]],
    batched: Mapping[tuple[int, int], int],
) -> Iterable[Split | None]:
    """Yield the readings of the result; None for one in which it is a summand."""
    for one in left:
        for other in right:
            if one[1:] != other[1:]:
                continue
            if one.dim == other.dim == GONE:  # the one entry of each may be a batch's, or be summed over
                yield from (None, one)
            if (one.dim, other.dim) in contracted:
                yield None
            elif (one.dim, other.dim) in batched:
                yield Split(batched[one.dim, other.dim], one.inner, one.below)


def _of_one_split(
    splits: Iterable[Split],
    places: Places,
    contracted: Mapping[int, int],
    batched: Mapping[int, int],
    uniform: frozenset[int],
) -> Iterable[Split | None]:
    for one in splits:
        if one.dim == GONE:
            yield one
        elif one.dim in contracted:
            if contracted[one.dim] in uniform:
                yield None
        elif one.dim in places and (one.dim not in batched or batched[one.dim] in uniform):
            yield Split(places[one.dim], one.inner, one.below)


def _dot(visit: Visit) -> Tree:
    names = ("lhs_contracting_dims", "rhs_contracting_dims", "lhs_batch_dims", "rhs_batch_dims")
    return _of_dims(visit, *(visit.numbers(name) for name in names))


def _of_dims(
    visit: Visit,
    left_contracted: tuple[int, ...],
    right_contracted: tuple[int, ...],
    left_batched: tuple[int, ...],
    right_batched: tuple[int, ...],
) -> Value:
    """Return the product of the first two operands: first the dims of batches, then the left one's, then the right."""
    left_free = [dim for dim in range(len(visit.dims_of(0))) if dim not in (*left_contracted, *left_batched)]
    right_free = [dim for dim in range(len(visit.dims_of(1))) if dim not in (*right_contracted, *right_batched)]
    left_places = {dim: at for at, dim in enumerate((*left_batched, *left_free))}
    right_places = {dim: at for at, dim in enumerate(right_batched)}
    right_places |= {dim: len(left_places) + at for at, dim in enumerate(right_free)}
    contracted = list(zip(left_contracted, right_contracted, strict=False))
    return product(visit, visit.array(0), visit.array(1), contracted, left_places, right_places)


def _convolution(visit: Visit) -> Tree:
    labels = re.split(r"_|->", visit.instruction.attributes.get("dim_labels", ""))
    grouped = visit.number("feature_group_count", 1) > 1 or visit.number("batch_group_count", 1) > 1
    if len(labels) != 3:
        return visit.unknown
    image, kernel, out = labels
    left = {image.index("b"): out.index("b")}
    right = {} if grouped else {kernel.index("o"): out.index("f")}
    contracted = [] if grouped else [(image.index("f"), kernel.index("i"))]
    return product(visit, visit.array(0), visit.array(1), contracted, left, right)


def _cudnn_forward(visit: Visit) -> Tree:
    result = _convolution(visit)
    activation = _configuration(visit, "cudnn_conv_backend_config").get("activation_mode", "kNone")
    if len(visit.arrays) > 2 or activation not in ("kNone", "0"):
        result = _after(visit, result, visit.arrays[2:], is_linear=False)
    return _with_workspace(visit, result)


def _cudnn_backward(visit: Visit, *, of_image: bool) -> Tree:
    """Follow a gradient of the convolution whose labels the call has."""
    image, kernel, out = re.split(r"_|->", visit.instruction.attributes["dim_labels"])
    if of_image:  # of the result's gradient and the kernel
        places = {out.index("b"): image.index("b")}, {kernel.index("i"): image.index("f")}
        contracted = [(out.index("f"), kernel.index("o"))]
    else:  # of the image and the result's gradient
        places = {image.index("f"): kernel.index("i")}, {out.index("f"): kernel.index("o")}
        contracted = [(image.index("b"), out.index("b"))]
    if visit.number("feature_group_count", 1) > 1:
        places, contracted = ({}, {}), []
    return _with_workspace(visit, product(visit, visit.array(0), visit.array(1), contracted, *places))


def _configuration(visit: Visit, name: str) -> Mapping[str, Any]:
    try:
        config = json.loads(visit.instruction.attributes.get("backend_config", "{}"))
    except ValueError:
        return {}
    return config.get(name, {}) if isinstance(config, dict) else {}


def _cublas(visit: Visit) -> Tree:
    config = _configuration(visit, "gemm_backend_config")
    dims = config.get("dot_dimension_numbers")
    if not isinstance(dims, dict):
        return _with_workspace(visit, visit.unknown)
    names = (
        *("lhs_contracting_dimensions", "rhs_contracting_dimensions"),
        *("lhs_batch_dimensions", "rhs_batch_dimensions"),
    )
    result: Tree = _of_dims(visit, *(tuple(map(int, dims.get(name, ()))) for name in names))
    if float(config.get("alpha_real", 1)) != 1 and isinstance(result, Value):
        result = replace(result, is_unscaled=False, parts=())
    others = visit.arrays[2:]
    if float(config.get("beta", 0)) and others:
        result = _after(visit, result, [others.pop(0)], is_linear=True)
    epilogue = str(config.get("epilogue", "DEFAULT"))
    if epilogue != "DEFAULT" or others:
        result = _after(visit, result, others, is_linear=False)
    return _with_workspace(visit, result)


def _after(visit: Visit, result: Tree, others: list[Value], *, is_linear: bool) -> Tree:
    """Return what becomes of a product to which the same call adds an array, or does more to its entries."""
    if not isinstance(result, Value):
        return result
    if is_linear:
        spreads = tuple(
            _added(visit, axis, one, others[0].spreads[axis], others[0].is_zero)
            for axis, one in enumerate(result.spreads)
        )
        return Value(spreads)
    spreads = []
    for axis, one in enumerate(result.spreads):
        # A bias has a number for each entry of the last dim only.
        rest = [other.spreads[axis] for other in others]
        keeps = one.kind in ("replicated", "split", "varying") and all(other.kind == "replicated" for other in rest)
        if one.kind == "split" and any(other.kind == "split" for other in rest):
            last = len(visit.shape.dims) - 1
            keeps = all(split.dim == last for split in one.splits)
        spreads.append(one if keeps else visit.used_whole(axis, [one, *rest]))
    return Value(tuple(spreads))


def _added(visit: Visit, axis: int, one: Spread, other: Spread, is_zero: bool) -> Spread:
    if one == other or (is_zero and other == REPLICATED):
        return one
    if one.kind == other.kind == "split":
        readings = one.splits & other.splits
        return split_along(readings, one.cause) if readings else mixed((one, other), visit.here)
    return visit.used_whole(axis, (one, other))


def _with_workspace(visit: Visit, result: Tree) -> Tree:
    """Return the results, the memory that the library works in among them."""
    more = len(visit.instruction.shapes) - 1
    return (result, *(visit.replicated for _ in range(more))) if more else result


def _attention(visit: Visit) -> Tree:
    """Follow cuDNN's attention: of (B, T, heads, dim) it makes (B, heads, T, dim), each example and head alone."""
    values = visit.arrays
    num_inputs = 3 if len(values) < 5 else 5
    places = {0: 0, 2: 1}

    def rule(axis: int, held: list[Spread]) -> Spread:
        if any(one.kind == "partial" for one in held):
            return visit.used_whole(axis, held)
        if any(one.kind != "split" for one in held[:3]):
            return mixed(held, visit.here)
        readings = [split for split in held[0].splits if split.dim in places]
        for dim, inner, below in list(readings):
            shared = all(any((one.dim, one.below) == (dim, below) for one in other.splits) for other in held[1:3])
            if not shared:
                readings.remove(Split(dim, inner, below))
        mapped = {Split(places[one.dim], visit.shape.dims[places[one.dim]], one.below) for one in readings}
        return split_along(mapped, held[0].cause) if mapped else mixed(held, visit.here)

    result = Value(visit.by_axis(rule, values[:num_inputs]))
    return tuple(result for _ in visit.instruction.shapes) if len(visit.instruction.shapes) > 1 else result


PRODUCT: Rules = {"convolution": _convolution, "dot": _dot}

LIBRARY_PRODUCT: Rules = {
    "__cublas$gemm": _cublas,
    "__cublas$lt$matmul": _cublas,
    "__cublas$lt$matmul$f8": _cublas,
    "__cudnn$convForward": _cudnn_forward,
    "__cudnn$convBiasActivationForward": _cudnn_forward,
    "__cudnn$convBackwardInput": lambda visit: _cudnn_backward(visit, of_image=True),
    "__cudnn$convBackwardFilter": lambda visit: _cudnn_backward(visit, of_image=False),
    "__cudnn$fmhaSoftmax": _attention,
    "__cudnn$fmhaSoftmaxBackward": _attention,
}
