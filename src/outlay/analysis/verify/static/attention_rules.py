"""How values are spread after kernels of attention, in which examples and heads are computed alone."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from outlay.analysis.hlo.hlo_module import Shape
from outlay.analysis.verify.static.spreads import Split, Spread, Tree, Value, mixed, split_along
from outlay.analysis.verify.static.visit import Rules, Visit

_SPLASH = "splash_m"

# From a result's rank to its dims of examples and of heads; keys may have fewer heads than queries.
_CUDNN = {4: {0: 0, 2: 1}}
_SPLASHED = {4: {0: 0, 1: 1}, 5: {0: 0, 1: 2}}


def is_splash_attention(visit: Visit) -> bool:
    """Return whether a call is a kernel of JAX's splash attention, with a batch in front."""
    return _SPLASH in visit.instruction.op_name and len(visit.dims_of(2)) == 4


def _cudnn(visit: Visit) -> Tree:
    """Follow cuDNN's attention: of (B, T, heads, dim) it makes (B, heads, T, dim)."""
    num_inputs = 3 if len(visit.arrays) < 5 else 5
    return _heads_alone(visit, list(range(num_inputs)), _CUDNN)


def splash_attention(visit: Visit) -> Tree:
    """Follow splash attention: (B, heads, T, dim) all, and the gradient of queries by blocks of keys."""
    return _heads_alone(visit, [at for at in range(len(visit.operands)) if len(visit.dims_of(at)) == 4], _SPLASHED)


def _heads_alone(visit: Visit, numbers: list[int], by_rank: Mapping[int, Mapping[int, int]]) -> Tree:
    values = [visit.array(number) for number in numbers]
    results = []
    for shape in visit.instruction.shapes:
        of_heads = functools.partial(_of_heads, visit, by_rank.get(len(shape.dims), {}), shape)
        if len(shape.dims) < 3:  # the memory that the library works in
            results.append(visit.replicated)
        else:
            results.append(Value(visit.by_axis(of_heads, values)))
    return tuple(results) if len(results) > 1 else results[0]


def _of_heads(visit: Visit, places: Mapping[int, int], shape: Shape, axis: int, held: list[Spread]) -> Spread:
    if any(one.kind == "partial" for one in held):
        return visit.used_whole(axis, held)
    if any(one.kind != "split" for one in held[:3]):
        return mixed(held, visit.here)
    shared = frozenset.intersection(*(frozenset((s.dim, s.below) for s in one.splits) for one in held[:3]))
    readings = [Split(places[dim], shape.dims[places[dim]], below) for dim, below in shared if dim in places]
    return split_along(readings, held[0].cause)


ATTENTION: Rules = {"__cudnn$fmhaSoftmax": _cudnn, "__cudnn$fmhaSoftmaxBackward": _cudnn}
