"""Gather split parameters where they are used; layers stacked for `lax.scan` one at a time.

The function that takes the parameters is traced once, and its operations are run again on shards. An operation that
needs a parameter gathers it. A loop over stacked layers takes the stacked shards, and each iteration gathers its own
layer; what is recomputed in the backward pass (`jax.checkpoint`) gathers again, so no layer stays gathered in between.
Gradients are scattered layer by layer as well: the transpose of a gather is a scatter.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import jaxprs_in_params
from jax.sharding import Mesh

from outlay.core.jax_tracing import CALLS, CHECKPOINTS, SCAN, operations, rerun_scan, run_jaxpr, scan_operands
from outlay.core.primitives import KEEPS
from outlay.layout.placement import Dims
from outlay.program.shard_collectives import gather

_CHEAP = KEEPS - {"name"}
"""Operations on a gathered parameter whose result is not worth keeping for the backward pass, unless it has a name."""


def gathered_at_use(function: Callable[..., Any], params: Any, dims: Sequence[Dims], mesh: Mesh, *args: Any) -> Any:
    """Call `function(params, *args)` inside `jax.shard_map`, where `params` are each device's shards.

    Args:
        function: takes unsplit parameters.
        params: the shards.
        dims: for each leaf, how its dims are split.
        mesh: the mesh.
        *args: what the function takes besides.
    """
    pieces, structure = jax.tree.flatten(params)
    if not any(any(each) for each in dims):
        return function(params, *args)
    split = [Piece(piece, each, mesh) if any(each) else piece for piece, each in zip(pieces, dims, strict=True)]
    types = jax.eval_shape(lambda *arrays: _whole(map(_with, split, arrays)), *pieces)
    trace = jax.make_jaxpr(lambda leaves, args: function(structure.unflatten(leaves), *args), return_shape=True)
    jaxpr, result = trace(types, args)
    return jax.tree.unflatten(jax.tree.structure(result), _run(jaxpr, [*split, *jax.tree.leaves(args)]))


@dataclass(eq=False)
class Piece:
    """One device's shard of an array, gathered when an operation needs the whole array.

    Attributes:
        array: the shard.
        dims: how the array is split.
        mesh: the mesh.
        dtype: what the array is converted to after the gather; None for its own. Converting before would move fewer
            bytes, but gradients would then be summed over devices in that dtype.
    """

    array: jax.Array
    dims: Dims
    mesh: Mesh
    dtype: Any = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the whole array."""
        parts = [math.prod(self.mesh.shape[axis] for axis in axes) for axes in self.dims]
        return tuple(size * num for size, num in zip(self.array.shape, parts, strict=True))

    @functools.cached_property
    def whole(self) -> jax.Array:
        """Gather the whole array, once."""
        whole: Any = self.array
        for dim, axes in enumerate(self.dims):
            if axes:
                whole = gather(whole, self.mesh, axes, dim)
        return whole if self.dtype is None else whole.astype(self.dtype)


def _with(like: Any, array: jax.Array, dims: Dims | None = None) -> Any:
    """Return a shard like another with a new array; where the other is not a shard, the array itself."""
    if not isinstance(like, Piece):
        return array
    return dataclasses.replace(like, array=array, dims=like.dims if dims is None else dims)


def _array(value: Any) -> jax.Array:
    return value.array if isinstance(value, Piece) else value


def _whole(values: Iterable[Any]) -> list[Any]:
    return [value.whole if isinstance(value, Piece) else value for value in values]


def _run(jaxpr: Any, values: Sequence[Any]) -> list[Any]:
    return _whole(run_jaxpr(jaxpr, values, _evaluate))


def _evaluate(eqn: Any, values: list[Any], bind: Callable[..., list[Any]]) -> list[Any]:
    """Run one operation, some of whose operands may be shards."""
    if any(isinstance(value, Piece) for value in values):
        name, results = eqn.primitive.name, None
        if name == SCAN:
            results = _loop(eqn.params, values)
        elif name in CHECKPOINTS and not eqn.params["differentiated"]:
            results = _recomputed(eqn.params, values)
        elif name in CALLS and any(_contains(each, (SCAN, *CHECKPOINTS)) for each in jaxprs_in_params(eqn.params)):
            return run_jaxpr(next(iter(jaxprs_in_params(eqn.params))), values, _evaluate)
        elif name in _ON_PIECES and isinstance(values[0], Piece):
            moved = _ON_PIECES[name](values[0], values[1:], eqn.params)
            results = None if moved is None else [moved]
        if results is not None:
            return results
    return bind(*_whole(values))


def _loop(params: Any, values: list[Any]) -> list[Any] | None:
    """Run a scan on stacked shards, gathering in each iteration."""
    body, (num_consts, num_carried) = params["jaxpr"], scan_operands(params)
    variables = getattr(body, "jaxpr", body).invars
    consts = [
        value if _only_sliced(body, variable) else _whole([value])[0]
        for variable, value in zip(variables, values[:num_consts], strict=False)
    ]
    # A carry comes out of a turn as a whole array, and so goes into it as one.
    carried = _whole(values[num_consts : num_consts + num_carried])
    # Split along its layers, a stack has not every layer on each device, so that none can be gathered alone.
    stacked = [
        one.whole if isinstance(one, Piece) and one.dims[0] else one for one in values[num_consts + num_carried :]
    ]
    pieces = [one for one in (*consts, *stacked) if isinstance(one, Piece)]
    if not pieces:
        return None

    def turn(arrays: list[Any]) -> list[Any]:
        arrays, slices = arrays[: num_consts + num_carried], arrays[num_consts + num_carried :]
        again = list(map(_with, consts, arrays))  # anew, so that what a turn gathers is its own
        layers = [
            _with(like, array, like.dims[1:] if isinstance(like, Piece) else None)
            for like, array in zip(stacked, slices, strict=True)
        ]
        return _run(body, [*again, *arrays[num_consts:], *layers])

    def forgetting(turn: Callable[..., Any]) -> Callable[..., Any]:
        if _contains(body, CHECKPOINTS):  # a step that recomputes says itself what is kept
            return turn
        shapes = {shape for one in pieces for shape in (one.shape[1:], (1, *one.shape[1:]))}
        # A turn of a loop is not merged with its recomputation: the barriers of prevent_cse would only cost time.
        return jax.checkpoint(turn, policy=_all_but_gathered(None, shapes), prevent_cse=False)

    return rerun_scan(params, [*map(_array, consts), *carried, *map(_array, stacked)], turn, forgetting)


def _recomputed(params: Any, values: list[Any]) -> list[Any]:
    """Run a `jax.checkpoint` on shards, so that it gathers inside, and again when it is recomputed."""

    def inside(*arrays: jax.Array) -> list[Any]:
        return _run(params["jaxpr"], list(map(_with, values, arrays)))

    shapes = {one.shape for one in values if isinstance(one, Piece)}
    policy = None if params["policy"] is None else _all_but_gathered(params["policy"], shapes)
    return jax.checkpoint(inside, policy=policy, prevent_cse=params["prevent_cse"])(*map(_array, values))


def _all_but_gathered(policy: Callable[..., Any] | None, shapes: set[tuple[int, ...]]) -> Callable[..., Any]:
    """Return a policy like another (None: keep everything), except that gathered parameters are not kept."""

    def keeps(primitive: Any, *types: Any, **params: Any) -> Any:
        if primitive.name == "all_gather" or (primitive.name in _CHEAP and types[0].shape in shapes):
            return False
        return True if policy is None else policy(primitive, *types, **params)

    return keeps


def _only_sliced(jaxpr: Any, variable: Any) -> bool:
    """Return whether a stack is only ever sliced, one layer at a time."""
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    uses = [eqn for eqn in jaxpr.eqns if variable in eqn.invars]
    return all(eqn.primitive.name == "dynamic_slice" for eqn in uses) and variable not in jaxpr.outvars


def _contains(jaxpr: Any, names: Sequence[str]) -> bool:
    return any(eqn.primitive.name in names for eqn in operations(jaxpr))


def _convert(piece: Piece, _: Any, params: Any) -> Piece:
    return dataclasses.replace(piece, dtype=params["new_dtype"])


def _transpose(piece: Piece, _: Any, params: Any) -> Piece:
    order = params["permutation"]
    return _with(piece, jax.lax.transpose(piece.array, order), tuple(piece.dims[dim] for dim in order))


def _squeeze(piece: Piece, _: Any, params: Any) -> Piece | None:
    if any(piece.dims[dim] for dim in params["dimensions"]):
        return None
    dims = tuple(axes for dim, axes in enumerate(piece.dims) if dim not in params["dimensions"])
    return _with(piece, jax.lax.squeeze(piece.array, params["dimensions"]), dims)


def _slice(piece: Piece, _: Any, params: Any) -> Piece | None:
    starts, limits = params["start_indices"], params["limit_indices"]
    strides = params["strides"] or (1,) * len(starts)
    if any(axes and limits[dim] - starts[dim] < piece.shape[dim] for dim, axes in enumerate(piece.dims)):
        return None
    limits = [piece.array.shape[dim] if axes else limits[dim] for dim, axes in enumerate(piece.dims)]
    return _with(piece, jax.lax.slice(piece.array, starts, limits, strides))


def _dynamic_slice(piece: Piece, starts: Sequence[Any], params: Any) -> Piece | None:
    sizes = params["slice_sizes"]
    if any(axes and sizes[dim] < piece.shape[dim] for dim, axes in enumerate(piece.dims)):
        return None
    sizes = [piece.array.shape[dim] if axes else sizes[dim] for dim, axes in enumerate(piece.dims)]
    return _with(piece, jax.lax.dynamic_slice(piece.array, list(starts), sizes))


def _reshape(piece: Piece, _: Any, params: Any) -> Piece | None:
    """Reshape the dims before the split ones, as when layers are scanned in groups."""
    first = next(dim for dim, axes in enumerate(piece.dims) if axes)
    rest, sizes = piece.shape[first:], params["new_sizes"]
    if params["dimensions"] is not None or sizes[len(sizes) - len(rest) :] != rest:
        return None
    leading = sizes[: len(sizes) - len(rest)]
    dims = ((),) * len(leading) + tuple(piece.dims[first:])
    return _with(piece, piece.array.reshape(*leading, *piece.array.shape[first:]), dims)


_ON_PIECES = {
    "convert_element_type": _convert,
    "copy": lambda piece, _, params: piece,
    "dynamic_slice": _dynamic_slice,
    "reshape": _reshape,
    "slice": _slice,
    "squeeze": _squeeze,
    "transpose": _transpose,
}
"""Operations on an array that can be done on its pieces, so that less is gathered, or later; None where they cannot."""
