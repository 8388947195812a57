"""Classify what an operation does with the samples of a batch: each by itself, a sum over them, or anything else.

Two traces of it tell which operands and results hold samples: those with a dim whose size differs. An operation is
local if one device's result is a shard of the whole result. One that is not listed here is assumed to mix samples,
which is always right.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.extend.core import Literal, jaxprs_in_params

from outlay.core.error_types import ProgramError
from outlay.core.primitives import EACH_ENTRY, EACH_TOKEN, KINDS, SCALE
from outlay.program.independent_dims import independent

_COMBINING = frozenset(
    [
        *(f"scatter{how}" for how in ("", "-add", "-sub", "-mul", "-min", "-max")),
        *("reduce", "reduce_window", "select_and_scatter", "select_and_scatter_add"),
    ]
)
"""Operations with a program that combines two entries of an array."""

WHOLE = "outlay_whole_batch"
"""The name of the operation that gathers samples because the loss says so."""

_ALONG = {
    **dict.fromkeys((*KINDS["cumulative"], "split"), "axis"),
    **dict.fromkeys(("concatenate", "sort"), "dimension"),
    "rev": "dimensions",
}
"""By which parameter an operation says along which dims it goes."""


def sample_dim(whole: Any, local: Any) -> int | None:
    """Return the dim of an array that holds the samples; None if there is none.

    Raises:
        ProgramError: there are two, so a device would only have the pairs of its own samples.
    """
    sizes = zip(_shape(whole), _shape(local), strict=True)
    dims = [dim for dim, (global_size, local_size) in enumerate(sizes) if global_size != local_size]
    if len(dims) > 1:
        raise ProgramError(
            f"the loss compares every sample with every other, in an array of shape {_shape(whole)}; a device would "
            f"have the pairs of its own samples only, {_shape(local)}\n"
            "  fix: gather one of the two sides: scores = x @ outlay.whole_batch(y).T"
        )
    return dims[0] if dims else None


def is_local(global_eqn: Any, local_eqn: Any) -> bool:
    """Return whether an operation on one device's samples gives a shard of its result on all samples."""
    if len(global_eqn.outvars) != len(local_eqn.outvars):  # as many results as samples
        return False
    before, after = (
        [sample_dim(*atoms) for atoms in zip(*pair, strict=True)]
        for pair in ((global_eqn.invars, local_eqn.invars), (global_eqn.outvars, local_eqn.outvars))
    )
    if local_eqn.primitive.name == "pallas_call" and any(dim is not None for dim in (*before, *after)):
        from outlay.core.jax_pallas import takes_each_sample

        # What a kernel does to its blocks says nothing of which samples they are.
        return takes_each_sample(global_eqn, local_eqn)
    if local_eqn.params.get("name") == EACH_TOKEN:
        return {*before, *after} <= {0, None}
    if local_eqn.params.get("name") == SCALE:
        return True
    inner = list(zip(*(jaxprs_in_params(eqn.params) for eqn in (global_eqn, local_eqn)), strict=True))
    # The program of a scatter or a reduction combines two entries, and does not tell which.
    if inner and local_eqn.primitive.name not in _COMBINING:
        # A scan over samples runs fewer times on a device, and what it carries would miss the other samples.
        return global_eqn.params.get("length") == local_eqn.params.get("length") and all(
            _all_local(*pair) for pair in inner
        )
    if all(dim is None for dim in (*before, *after)):  # no samples are involved: every device computes all of it
        return True
    return _is_local(local_eqn, before, after)


def sums_samples(global_eqn: Any, local_eqn: Any) -> bool:
    """Return whether an operation sums over samples, so that the devices' results add up to the whole batch's."""
    if any(sample_dim(*atoms) is not None for atoms in zip(global_eqn.outvars, local_eqn.outvars, strict=True)):
        return False
    before = [sample_dim(*atoms) for atoms in zip(global_eqn.invars, local_eqn.invars, strict=True)]
    if local_eqn.primitive.name == "dot_general":
        (left, right), _ = local_eqn.params["dimension_numbers"]
        # Both operands must be contracted along their samples, as in x.T @ y; of one alone, a device has a part only.
        positions = [dims.index(dim) for dims, dim in zip((left, right), before, strict=True) if dim in dims]
        return len(positions) == 2 and positions[0] == positions[1]
    return local_eqn.primitive.name == "reduce_sum"


def _all_local(whole: Any, local: Any) -> bool:
    """Return whether a program inside an operation treats each sample by itself and does not use their number."""
    if any(_differ(a, b) for a, b in zip(getattr(whole, "consts", ()), getattr(local, "consts", ()), strict=True)):
        return False
    whole, local = getattr(whole, "jaxpr", whole), getattr(local, "jaxpr", local)
    if [eqn.primitive for eqn in whole.eqns] != [eqn.primitive for eqn in local.eqns]:
        return False
    return all(
        is_local(a, b) and not any(map(_differ, (*a.invars, *a.outvars), (*b.invars, *b.outvars)))
        for a, b in zip(whole.eqns, local.eqns, strict=True)
    )


def _differ(whole: Any, local: Any) -> bool:
    """Return whether two numbers known at trace time differ."""
    whole, local = (atom.val if isinstance(atom, Literal) else atom for atom in (whole, local))
    numbers = (int, float, complex, bool, np.ndarray, np.generic)
    if isinstance(whole, numbers) and isinstance(local, numbers):
        return not are_equal(whole, local)
    # By identity: to compare their values would wait for a device, and one closure holds the same object both times.
    return isinstance(whole, jax.Array) and whole is not local


def are_equal(first: Any, second: Any) -> bool:
    """Return whether two numbers or arrays are the same, NaN included."""
    first, second = np.asarray(first), np.asarray(second)
    return np.array_equal(first, second, equal_nan=first.dtype.kind in "fc")


def _is_local(local_eqn: Any, before: list[int | None], after: list[int | None]) -> bool:
    """Return `is_local` of one operation that touches samples."""
    name, params, result, dim = local_eqn.primitive.name, local_eqn.params, after[0], before[0] if before else None
    shapes = [_shape(atom) for atom in local_eqn.invars]
    same = all(
        d == result or (d is None and _is_repeated(shape, result))
        if len(shape) == len(_shape(local_eqn.outvars[0]))
        else d is None
        for d, shape in zip(before, shapes, strict=True)
    )
    match name:
        case "optimization_barrier":
            return before == after
        case _ if name in KINDS["keys"] and shapes[0] and dim is not None:
            return result == dim and before[1:] in ([], [dim], [None])
        case "random_fold_in" if not shapes[0]:  # one key, and a number for each sample
            return before[1] == result
        case _ if name in EACH_ENTRY:
            return same
        case "broadcast_in_dim":
            return dim is None or params["broadcast_dimensions"][dim] == result
        case "reshape":
            return _keeps_samples_first(shapes[0], dim, _shape(local_eqn.outvars[0]), result)
        case "transpose" | "squeeze" | "expand_dims":
            return True
        case "iota":  # which counts along features, as `argsort` has it, and not samples
            return params["dimension"] != result
        case _ if name in KINDS["reduces"]:
            return dim not in params["axes"]
        case _ if name in _ALONG:
            along = params[_ALONG[name]]
            along = along if isinstance(along, tuple) else (along,)
            return {*before, *after} == {result} and result not in along
        case "stack" | "unstack":
            stacked, others, axis = result, before, params["axis"]
            if name == "unstack":
                stacked, others = dim, after
            return stacked != axis and {*others} == {stacked - (stacked > axis) if stacked is not None else None}
        case "top_k":
            return dim == result and dim != len(shapes[0]) - 1
        case "pad":
            return dim == result and result is not None and params["padding_config"][result] == (0, 0, 0)
        case "slice" | "dynamic_slice":
            # Its start, an operand of a dynamic slice, may not depend on the samples either.
            step = (params.get("strides") or (1,) * len(shapes[0]))[dim or 0]
            return _is_there_whole(local_eqn, dim) and dim == result and step == 1 and {*before[1:]} <= {None}
        case "dynamic_update_slice":
            # An update of as many samples as there are replaces all of them, wherever it is told to start.
            is_whole = dim is not None and shapes[1][dim] == shapes[0][dim]
            return before[:2] == [result] * 2 and is_whole and {*before[2:]} <= {None}
        case _ if name.startswith("scatter"):
            return _is_local_scatter(local_eqn, before, result)
        case "dot_general":
            return _is_local_product(params["dimension_numbers"], before)
        case "conv_general_dilated":
            numbers = params["dimension_numbers"]
            is_plain = params["batch_group_count"] == 1 and before[1] is None
            return is_plain and dim == numbers.lhs_spec[0] and result == numbers.out_spec[0]
        case "gather":
            return _is_local_gather(local_eqn, before)
        case "reduce_window_max" | "reduce_window_min" | "reduce_window_sum" | "reduce_window":
            one = [params[of][dim] for of in ("window_dimensions", "window_strides")] if dim is not None else []
            return one == [1, 1] and tuple(params["padding"][dim]) == (0, 0)
    return _is_independent(local_eqn, before, after)


def _is_repeated(shape: tuple[int, ...], dim: int | None) -> bool:
    """Return whether an operand has one entry for all samples, such as a table of angles (1, S, 1, D)."""
    return dim is not None and shape[dim] == 1


def _keeps_samples_first(before: tuple[int, ...], dim: int | None, after: tuple[int, ...], result: int | None) -> bool:
    """Return whether a reshape leaves the samples slowest within their dim, after the same number of entries."""
    if dim is None or result is None:
        return False
    return np.prod(before[:dim], dtype=int) == np.prod(after[:result], dtype=int)


def _is_there_whole(local_eqn: Any, dim: int | None) -> bool:
    """Return whether all samples of the operand are in the result."""
    return dim is not None and _shape(local_eqn.invars[0])[dim] == _shape(local_eqn.outvars[0])[dim]


def _is_local_product(numbers: Any, before: list[int | None]) -> bool:
    (left, right), (left_batch, right_batch) = numbers
    summed = [dim in dims for dim, dims in zip(before, (left, right), strict=True)]
    batch = [
        dims.index(dim) if dim in dims else None for dim, dims in zip(before, (left_batch, right_batch), strict=True)
    ]
    if any(summed):
        return False
    return batch[0] == batch[1] and (batch[0] is not None or None in before)


def _is_local_gather(local_eqn: Any, before: list[int | None]) -> bool:
    """Return whether each sample gathers rows from its own array, or from one that all samples share."""
    numbers, sizes, (operand, indices) = local_eqn.params["dimension_numbers"], local_eqn.params["slice_sizes"], before
    if operand is None:
        return indices != len(_shape(local_eqn.invars[1])) - 1
    if indices is None:
        return sizes[operand] == _shape(local_eqn.invars[0])[operand]
    batching = list(zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True))
    return (operand, indices) in batching


def _is_local_scatter(local_eqn: Any, before: list[int | None], result: int | None) -> bool:
    """Return whether each sample's updates go into its own array."""
    numbers, (operand, indices, updates) = local_eqn.params["dimension_numbers"], before
    if operand is None or operand != result or updates is None:
        return False
    of_operand, _, of_updates = (_shape(atom) for atom in local_eqn.invars)
    if indices is None:  # the same places for all samples, which are all there
        inside = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
        window = [dim for dim in range(len(of_operand)) if dim not in inside]
        pairs = zip(numbers.update_window_dims, window, strict=True)
        return (updates, operand) in pairs and of_updates[updates] == of_operand[operand]
    given = [dim for dim in range(len(of_updates)) if dim not in numbers.update_window_dims]
    batching = zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True)
    return (operand, indices) in batching and updates == given[indices]


def _is_independent(local_eqn: Any, before: list[int | None], after: list[int | None]) -> bool:
    """Return whether the samples are one of the factors over which an operation treats each entry by itself."""
    factors = independent(local_eqn)
    if factors is None:
        return False
    pairs = [*zip(factors.operands, before, strict=True), *zip(factors.results, after, strict=True)]
    held = {of_dims[dim] for of_dims, dim in pairs if dim is not None}
    if len(held) != 1 or None in held:
        return False
    (factor,) = held
    return all(dim is not None or factor not in of_dims for of_dims, dim in pairs)


def _shape(atom: Any) -> tuple[int, ...]:
    return tuple(np.shape(atom.val)) if isinstance(atom, Literal) else tuple(getattr(atom, "aval", atom).shape)
