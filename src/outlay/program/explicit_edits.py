"""The edits that could give an operation a sharding where Explicit axes leave it open, the likeliest first."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

Bind = Callable[..., Any]
_Dims = tuple[Any, ...]

_MOST_RESHARDS = 64
"""Ways to unshard operands that are tried for one operation, before all of them at once."""


@dataclass(frozen=True)
class Edit:
    """One way to write an operation so that JAX accepts it.

    Attributes:
        run: the operation with the edit made; it raises where the edit does not help.
        text: the edit in words of code.
        out_spec: what goes into `out_sharding=`, where the edit is one.
    """

    run: Callable[[], Any]
    text: str
    out_spec: P | None = None


def edits(operation: str, bind: Bind, operands: tuple[Any, ...], params: dict[str, Any]) -> Iterator[Edit]:
    """The edits worth trying, in order.

    Args:
        operation: the name of the primitive.
        bind: runs it.
        operands: its operands, as traced; their types carry shardings.
        params: its parameters.
    """
    if operation == "dot_general":
        yield _dot(bind, operands, params)
    reshards = _reshards(bind, operands, params)
    if operation != "gather":
        yield from reshards
    elif params["dimension_numbers"].operand_batching_dims:  # take_along_axis, which takes no out_sharding
        yield from itertools.chain(reshards, [_lookup(bind, operands, params)])
    else:
        yield from itertools.chain([_lookup(bind, operands, params)], reshards)


def dims_of(operand: Any) -> _Dims:
    """The mesh axes of each dim of a value: None, a name, or a tuple of names."""
    found = jax.typeof(operand)
    dims = getattr(getattr(found, "sharding", None), "spec", None) or ()
    return (*dims, *[None] * (len(getattr(found, "shape", ())) - len(dims)))


def out_sharding_of(spec: P) -> str:
    """The parameter as it is written."""
    return f"out_sharding={_written(spec)}"


def _dot(bind: Bind, operands: tuple[Any, ...], params: dict[str, Any]) -> Edit:
    (left_summed, right_summed), (left_batch, right_batch) = params["dimension_numbers"]
    left, right = (dims_of(operand) for operand in operands)
    batch = [left[i] or right[j] for i, j in zip(left_batch, right_batch, strict=True)]
    left_kept = [axes for i, axes in enumerate(left) if i not in (*left_summed, *left_batch)]
    right_kept = [axes for i, axes in enumerate(right) if i not in (*right_summed, *right_batch)]
    spec = P(*_each_axis_once([*batch, *left_kept, *right_kept]))
    wanted = NamedSharding(jax.sharding.get_abstract_mesh(), spec)
    text = f"jnp.matmul or jnp.einsum(..., {out_sharding_of(spec)})"
    return Edit(lambda: bind(*operands, **{**params, "out_sharding": wanted}), text, spec)


def _lookup(bind: Bind, operands: tuple[Any, ...], params: dict[str, Any]) -> Edit:
    """Rows of a table: split as the indices are, and along each row as the table is."""
    numbers = params["dimension_numbers"]
    table, indices = (dims_of(operand) for operand in operands)
    gone = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    whole = [size == full for size, full in zip(params["slice_sizes"], operands[0].shape, strict=True)]
    along_rows = iter([axes if whole[i] else None for i, axes in enumerate(table) if i not in gone])
    along_indices = iter(indices[:-1])
    in_row = [i in numbers.offset_dims for i in range(len(indices) - 1 + len(numbers.offset_dims))]
    dims = [next(along_rows) if row else next(along_indices) for row in in_row]
    first = sorted(range(len(dims)), key=lambda i: in_row[i])  # where both want an axis, the indices keep it
    once = dict(zip(first, _each_axis_once([dims[i] for i in first]), strict=True))
    spec = P(*(once[i] for i in range(len(dims))))
    run = jax.sharding.auto_axes(lambda *args: bind(*args, **params), out_sharding=spec)
    return Edit(lambda: run(*operands), f"table.at[indices].get({out_sharding_of(spec)})", spec)


def _reshards(bind: Bind, operands: tuple[Any, ...], params: dict[str, Any]) -> Iterator[Edit]:
    """Operands moved before the operation: to each other's sharding, or whole along some dims; cheap moves first."""
    old = [dims_of(operand) for operand in operands]
    for new in itertools.chain(_like_another(operands, old), _whole_along(operands, old)):
        moved = {i: P(*dims) for i, dims in enumerate(new) if dims != old[i]}
        edited = [_moved(operand, moved.get(i)) for i, operand in enumerate(operands)]
        many = len(operands) > 1
        text = " and ".join(
            f"jax.reshard({f'operand {i + 1}' if many else 'the operand'}, {_written(_short(spec))})"
            for i, spec in moved.items()
        )
        yield Edit(lambda edited=edited: bind(*edited, **params), text)


def _moved(operand: Any, spec: P | None) -> Any:
    """The operand moved to a spec, or left alone."""
    return operand if spec is None else jax.reshard(operand, spec)


def _like_another(operands: tuple[Any, ...], old: list[_Dims]) -> Iterator[list[_Dims]]:
    if len(operands) < 2 or len({operand.shape for operand in operands}) > 1:
        return
    for dims in dict.fromkeys(old):
        if any(dims):
            yield [dims] * len(operands)


def _whole_along(operands: tuple[Any, ...], old: list[_Dims]) -> Iterator[list[_Dims]]:
    sharded = [(i, d) for i, dims in enumerate(old) for d, axes in enumerate(dims) if axes]

    def cost(drops: tuple[tuple[int, int], ...]) -> tuple[int, int, int]:
        # The first dim is most often the batch, which nobody wants whole.
        moved = {i for i, _ in drops}
        return len(drops), sum(d == 0 for _, d in drops), sum(math.prod(operands[i].shape) for i in moved)

    few = sorted((drops for n in (1, 2, 3) for drops in itertools.combinations(sharded, n)), key=cost)
    for drops in [*few[:_MOST_RESHARDS], tuple(sharded)]:
        yield [tuple(None if (i, d) in drops else axes for d, axes in enumerate(dims)) for i, dims in enumerate(old)]


def _each_axis_once(dims: list[Any]) -> list[Any]:
    """Drop what an earlier dim uses already."""
    used: set[str] = set()
    kept = []
    for axes in dims:
        names = axes if isinstance(axes, tuple) else (axes,) if axes else ()
        free = tuple(name for name in names if name not in used)
        used.update(free)
        kept.append(free[0] if len(free) == 1 else free or None)
    return kept


def _short(spec: P) -> P:
    """Without what it need not say: jax.numpy may have given the operand leading dims that the user does not see."""
    dims = list(spec)
    while dims and dims[-1] is None:
        dims.pop()
    return P(*dims)


def _written(spec: P) -> str:
    return f"P({', '.join(repr(axes) for axes in spec)})"
