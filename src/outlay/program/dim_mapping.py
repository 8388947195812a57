"""Say to which dims of its result an operation takes the dims of its operands."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from outlay.core.primitives import EACH_ENTRY, KINDS

Dims = dict[int, int]
"""To which dim of a result a dim of an operand goes."""


def dims_of(eqn: Any) -> list[Dims]:
    """Return, for each operand of an operation, which of its dims are which dims of the results.

    Dims along which the operation goes are left out, and so are all dims of an operation that is not listed.
    """
    name, params = eqn.primitive.name, eqn.params
    shapes = [tuple(getattr(atom.aval, "shape", ())) for atom in eqn.invars]
    result = tuple(getattr(eqn.outvars[0].aval, "shape", ())) if eqn.outvars else ()
    if name in EACH_ENTRY:
        return [{dim: dim for dim in range(len(shape))} if len(shape) == len(result) else {} for shape in shapes]
    if name in KINDS["reduces"]:
        return [_without(shapes[0], params["axes"])]
    rule = _RULES.get(name)
    if rule is not None:
        return rule(params, shapes, result)
    if name not in _ALONG or not shapes:
        return [{} for _ in shapes]
    along = params[_ALONG[name]]
    along = along if isinstance(along, tuple) else (along,)
    return [{dim: dim for dim in range(len(shape)) if dim not in along} for shape in shapes]


_ALONG = {"split": "axis", "concatenate": "dimension", "sort": "dimension", "rev": "dimensions"}
"""By which parameter an operation says along which dims it goes."""


def _without(shape: tuple[int, ...], dims: Sequence[int]) -> Dims:
    """Number the dims that are left when some are taken out."""
    left = [dim for dim in range(len(shape)) if dim not in dims]
    return {dim: position for position, dim in enumerate(left)}


def _broadcast(params: Any, shapes: list[tuple[int, ...]], result: tuple[int, ...]) -> list[Dims]:
    to = params["broadcast_dimensions"]
    return [{dim: int(to[dim]) for dim, size in enumerate(shapes[0]) if size == result[to[dim]]}]


def _reshape(params: Any, shapes: list[tuple[int, ...]], result: tuple[int, ...]) -> list[Dims]:
    """Pair the dims that begin at the same entry: pieces of one are then pieces of the other, if they divide it."""
    if params.get("dimensions") is not None:
        return [{}]
    starts = {math.prod(result[:dim]): dim for dim in reversed(range(len(result))) if result[dim] > 1}
    begins = {dim: math.prod(shapes[0][:dim]) for dim, size in enumerate(shapes[0]) if size > 1}
    return [{dim: starts[start] for dim, start in begins.items() if start in starts}]


def _transpose(params: Any, shapes: list[tuple[int, ...]], _: Any) -> list[Dims]:
    return [{int(dim): position for position, dim in enumerate(params["permutation"])}]


def _squeeze(params: Any, shapes: list[tuple[int, ...]], _: Any) -> list[Dims]:
    return [_without(shapes[0], [dim % len(shapes[0]) for dim in params["dimensions"]])]


def _stack(params: Any, shapes: list[tuple[int, ...]], _: Any) -> list[Dims]:
    return [{dim: dim + (dim >= params["axis"]) for dim in range(len(shape))} for shape in shapes]


def _unstack(params: Any, shapes: list[tuple[int, ...]], _: Any) -> list[Dims]:
    return [_without(shapes[0], [params["axis"]])]


def _whole_dims(_: Any, shapes: list[tuple[int, ...]], result: tuple[int, ...]) -> list[Dims]:
    """Keep dims that are whole in both operand and result of a slice, an update or a padding."""
    same = [
        {dim: dim for dim, size in enumerate(shape) if size == result[dim]} if len(shape) == len(result) else {}
        for shape in shapes[:2]
    ]
    return same


def _product(params: Any, shapes: list[tuple[int, ...]], _: Any) -> list[Dims]:
    (summed, (left_batch, right_batch)) = params["dimension_numbers"]
    left = [dim for dim in range(len(shapes[0])) if dim not in (*summed[0], *left_batch)]
    right = [dim for dim in range(len(shapes[1])) if dim not in (*summed[1], *right_batch)]
    num_batch = len(left_batch)
    of_left = {dim: position for position, dim in enumerate([*left_batch, *left])}
    of_right = {dim: position for position, dim in enumerate(right_batch)}
    of_right.update({dim: num_batch + len(left) + position for position, dim in enumerate(right)})
    return [of_left, of_right]


def _convolution(params: Any, *_: Any) -> list[Dims]:
    numbers = params["dimension_numbers"]
    samples = {numbers.lhs_spec[0]: numbers.out_spec[0]} if params["batch_group_count"] == 1 else {}
    return [samples, {numbers.rhs_spec[0]: numbers.out_spec[1]}]


def _gather(params: Any, shapes: list[tuple[int, ...]], result: tuple[int, ...]) -> list[Dims]:
    numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
    given = [dim for dim in range(len(result)) if dim not in numbers.offset_dims]
    of_indices = dict(zip(range(len(shapes[1]) - 1), given, strict=False))
    taken = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    left = [dim for dim in range(len(shapes[0])) if dim not in taken]
    of_operand = {
        dim: int(to) for dim, to in zip(left, numbers.offset_dims, strict=True) if sizes[dim] == shapes[0][dim]
    }
    pairs = zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
    of_operand.update({int(dim): of_indices[int(index)] for dim, index in pairs})
    return [of_operand, of_indices]


def _scatter(params: Any, shapes: list[tuple[int, ...]], _: Any) -> list[Dims]:
    numbers = params["dimension_numbers"]
    untouched = {dim: dim for dim in range(len(shapes[0])) if dim not in numbers.scatter_dims_to_operand_dims}
    pairs = zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True)
    return [untouched, {int(index): int(dim) for dim, index in pairs}]


def _keys(_: Any, shapes: list[tuple[int, ...]], result: tuple[int, ...]) -> list[Dims]:
    return [{dim: dim for dim, size in enumerate(shapes[0]) if dim < len(result) and size == result[dim]}]


_RULES: dict[str, Callable[[Any, list[tuple[int, ...]], tuple[int, ...]], list[Dims]]] = {
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "transpose": _transpose,
    "squeeze": _squeeze,
    "stack": _stack,
    "unstack": _unstack,
    "dot_general": _product,
    "conv_general_dilated": _convolution,
    "gather": _gather,
    **dict.fromkeys(("slice", "dynamic_slice", "dynamic_update_slice", "pad"), _whole_dims),
    **dict.fromkeys(("reduce_window_sum", "reduce_window_max", "reduce_window_min"), _whole_dims),
    **dict.fromkeys(KINDS["scatters"], _scatter),
    **dict.fromkeys(KINDS["keys"] - {"random_seed"}, _keys),
}
"""How the dims of the operands go to those of the result, for operations along none or some of them."""
