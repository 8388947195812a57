"""What gathers, scatters and slices at computed positions compute.

Positions outside of an array are moved inside by gathers and dynamic slices, and left out by scatters
(https://openxla.org/xla/operation_semantics).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from outlay.analysis.hlo.execute.operation import Meanings, Operation
from outlay.analysis.hlo.hlo_module import Computation, Instruction
from outlay.analysis.hlo.opcodes import RESHAPED

_COMBINES: dict[str, Callable[..., Any]] = {
    "add": lax.scatter_add,
    "multiply": lax.scatter_mul,
    "minimum": lax.scatter_min,
    "maximum": lax.scatter_max,
    "replace": lax.scatter,
}


def _dynamic_slice(operation: Operation) -> Any:
    array, *starts = operation.operands
    sizes = operation.numbers("dynamic_slice_sizes")
    return lax.dynamic_slice(array, _inside(array.shape, sizes, starts), sizes)


def _dynamic_update_slice(operation: Operation) -> Any:
    array, update, *starts = operation.operands
    # A TPU's update may also round or widen what it writes.
    array, update = (value.astype(operation.dtype) for value in (array, update))
    return lax.dynamic_update_slice(array, update, _inside(array.shape, update.shape, starts))


def _inside(dims: tuple[int, ...], sizes: tuple[int, ...], starts: list[Any]) -> list[Any]:
    if len(starts) == 1 and starts[0].ndim == 1:  # the older form: all positions in one array
        starts = list(starts[0])
    bounds = [dim - size for dim, size in zip(dims, sizes, strict=True)]
    # JAX counts negative positions from the end, XLA does not.
    return [jnp.clip(start, 0, bound).astype(start.dtype) for start, bound in zip(starts, bounds, strict=True)]


def _index_vectors_last(operation: Operation, indices: Any) -> tuple[Any, Callable[[int], int]]:
    """Return the positions with the entries of each as the last dim, and where each other dim is then."""
    dim = operation.number("index_vector_dim", indices.ndim)
    if dim == indices.ndim:
        return indices[..., None], lambda other: other
    return jnp.moveaxis(indices, dim, -1), lambda other: other - (other > dim)


def _gather(operation: Operation) -> Any:
    array, indices = operation.operands
    indices, moved = _index_vectors_last(operation, indices)
    numbers = lax.GatherDimensionNumbers(
        offset_dims=operation.numbers("offset_dims"),
        collapsed_slice_dims=operation.numbers("collapsed_slice_dims"),
        start_index_map=operation.numbers("start_index_map"),
        operand_batching_dims=operation.numbers("operand_batching_dims"),
        start_indices_batching_dims=tuple(map(moved, operation.numbers("start_indices_batching_dims"))),
    )
    return lax.gather(array, indices, numbers, operation.numbers("slice_sizes"), mode=lax.GatherScatterMode.CLIP)


def _scatter(operation: Operation) -> Any:
    if len(operation.operands) != 3:
        raise ValueError("a scatter into several arrays at once has no meaning here")
    array, indices, updates = operation.operands
    indices, moved = _index_vectors_last(operation, indices)
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=operation.numbers("update_window_dims"),
        inserted_window_dims=operation.numbers("inserted_window_dims"),
        scatter_dims_to_operand_dims=operation.numbers("scatter_dims_to_operand_dims"),
        operand_batching_dims=operation.numbers("input_batching_dims"),
        scatter_indices_batching_dims=tuple(map(moved, operation.numbers("scatter_indices_batching_dims"))),
    )
    combining = operation.module.called(operation.instruction, "to_apply")
    kind = combine_kind(combining) if combining else None
    if kind in _COMBINES and (array.dtype != bool or kind == "replace"):
        return _COMBINES[kind](array, indices, updates, numbers, mode=lax.GatherScatterMode.FILL_OR_DROP)
    return _one_by_one(array, indices, updates, numbers, operation.applied("to_apply"))


def combine_kind(computation: Computation) -> str | None:
    """Return what a computation of two numbers does: `add`, `multiply`, `minimum`, `maximum`, `replace`, or None."""
    root = _source(computation, computation.root)
    if root is None:
        return None
    if root.opcode == "parameter":
        return "replace" if root.value == "1" else None
    sources = [_source(computation, computation.instructions.get(name)) for name in root.operands]
    taken = sorted(one.value for one in sources if one is not None and one.opcode == "parameter")
    return root.opcode if taken == ["0", "1"] and root.opcode in _COMBINES else None


def _source(computation: Computation, one: Instruction | None) -> Instruction | None:
    while one is not None and one.opcode in RESHAPED:
        one = computation.instructions.get(one.operands[0])
    return one


def _one_by_one(array: Any, indices: Any, updates: Any, numbers: lax.ScatterDimensionNumbers, combine: Any) -> Any:
    """Scatter one window after the other, by any function of the old and the new entry."""
    window_dims = numbers.update_window_dims
    batch_dims = [dim for dim in range(updates.ndim) if dim not in window_dims]
    rows = lax.transpose(updates, (*batch_dims, *window_dims))
    num_rows = 1
    for dim in batch_dims:
        num_rows *= updates.shape[dim]
    rows = rows.reshape(num_rows, *(updates.shape[dim] for dim in window_dims))
    positions = indices.reshape(num_rows, indices.shape[-1]).astype(jnp.int64)
    places = _batch_positions(indices.shape[:-1], numbers, num_rows)
    whole = [*numbers.inserted_window_dims, *numbers.operand_batching_dims]
    window = iter(rows.shape[1:])
    sizes = [1 if dim in whole else next(window) for dim in range(array.ndim)]

    def body(row: Any, array: Any) -> Any:
        start = jnp.zeros(array.ndim, jnp.int64)
        start = start.at[jnp.array(numbers.scatter_dims_to_operand_dims, jnp.int64)].set(positions[row])
        for dim, values in places.items():
            start = start.at[dim].set(values[row])
        limit = jnp.array([size - part for size, part in zip(array.shape, sizes, strict=True)])
        old = lax.dynamic_slice(array, list(jnp.clip(start, 0, limit)), sizes)
        new = jax.vmap(combine)(old.reshape(-1), rows[row].reshape(-1)).reshape(sizes)
        is_inside = jnp.all((start >= 0) & (start <= limit))
        return lax.dynamic_update_slice(array, jnp.where(is_inside, new, old), list(jnp.clip(start, 0, limit)))

    return lax.fori_loop(0, num_rows, body, array)


def _batch_positions(dims: tuple[int, ...], numbers: lax.ScatterDimensionNumbers, num_rows: int) -> dict[int, Any]:
    counted = list(itertools.product(*map(range, dims)))
    return {
        dim: jnp.array([position[index_dim] for position in counted], jnp.int64).reshape(num_rows)
        for dim, index_dim in zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True)
    }


INDEXING: Meanings = {
    "dynamic-slice": _dynamic_slice,
    "dynamic-update-slice": _dynamic_update_slice,
    "gather": _gather,
    "scatter": _scatter,
}
