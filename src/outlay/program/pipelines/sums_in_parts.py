"""Leave sums over a batch in parts, one for each device that has some of it, until the last term is there.

XLA sums a product over the devices of its samples and tokens at once: the gradients of a layer in each tick of a
pipeline. Here such a product in a traced program is one for each device's part of the batch, (parts, ...), whose first
dim is split as the batch is. What is linear behind it goes on with the parts, up to the results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Literal
from jax.sharding import PartitionSpec as P

from outlay.core.jax_tracing import CALLS, CHECKPOINTS, SCAN, rerun, run_jaxpr
from outlay.core.primitives import KINDS
from outlay.program.place_inside import Place
from outlay.program.propagated_splits import Claim, Propagation, Split

_OF_FIRST = KINDS["rearranges"] | frozenset(
    ["broadcast_in_dim", "convert_element_type", "copy", "div", "name", "neg", "reduce_sum", "sharding_constraint"]
)
"""Operations that are linear in their first operand."""
_SUMS = ("add", "add_any")
_CALLS = (*CALLS, *CHECKPOINTS)


class InParts(NamedTuple):
    """A value that is the sum of its parts.

    Attributes:
        array: (parts, ...).
    """

    array: Any


@dataclass(frozen=True)
class BatchParts:
    """The devices that a batch is split over.

    Attributes:
        sizes: the mesh axes that split its samples, or their tokens, with their sizes.
        place: constrains where values live.
    """

    sizes: Mapping[str, int]
    place: Place

    @property
    def num(self) -> int:
        """How many parts there are."""
        return math.prod(self.sizes.values())

    @property
    def axes(self) -> tuple[str, ...]:
        """The mesh axes."""
        return tuple(self.sizes)

    def splits(self, jaxpr: Any, of_arguments: Sequence[Split]) -> list[Split]:
        """Return how the results of a traced program are split, from how its arguments are."""
        return Propagation(self.sizes).through(jaxpr, of_arguments)

    def run(self, jaxpr: Any, values: Sequence[Any], splits: Sequence[Split], in_parts: Collection[int]) -> list[Any]:
        """Run a traced program.

        Args:
            jaxpr: the program.
            values: its arguments.
            splits: how they are split.
            in_parts: which of its results are to be in parts.

        Returns:
            Its results, or the parts that they are the sum of, (parts, ...).
        """
        results = self._run(jaxpr, values, splits, in_parts)
        return [self._as_parts(x).array if number in in_parts else x for number, x in enumerate(results)]

    def _run(self, jaxpr: Any, values: Sequence[Any], splits: Sequence[Split], in_parts: Collection[int]) -> list[Any]:
        body = getattr(jaxpr, "jaxpr", jaxpr)
        known = Propagation(self.sizes).forward(body, splits)
        apart = _may_be_in_parts(body, known, self.axes, in_parts)

        def evaluate(eqn: Any, values: list[Any], bind: Callable[..., list[Any]]) -> list[Any]:
            if any(isinstance(x, InParts) for x in values):
                return [self._linear(eqn, values, bind)]
            inside = [number for number, variable in enumerate(eqn.outvars) if variable in apart]
            if not inside:
                return bind(*values)
            if eqn.primitive.name in _CALLS:
                of_operands = _splits(known, eqn)
                return rerun(eqn, values, lambda inner, values: self._run(inner, values, of_operands, inside))
            dims = _summed_dims(eqn, _splits(known, eqn), self.axes)
            if dims is None:
                return bind(*values)
            made = self._product if eqn.primitive.name == "dot_general" else self._sum
            return [InParts(self.place(made(eqn, values, dims), P(self.axes)))]

        return run_jaxpr(jaxpr, values, evaluate)

    def _product(self, eqn: Any, values: Sequence[Any], summed: Sequence[tuple[int, ...]]) -> jax.Array:
        """Return a `dot_general` for each part of the dims that it sums over, given for each operand."""
        one, other = (self._cut(x, dims) for x, dims in zip(values, summed, strict=True))
        (left, right), (left_batch, right_batch) = (
            [[dim + 1 for dim in dims] for dims in both] for both in eqn.params["dimension_numbers"]
        )
        numbers = (left, right), ([0, *left_batch], [0, *right_batch])
        how = {name: eqn.params[name] for name in ("precision", "preferred_element_type")}
        return jax.lax.dot_general(one, other, numbers, **how)

    def _sum(self, eqn: Any, values: Sequence[Any], summed: Sequence[tuple[int, ...]]) -> jax.Array:
        return jnp.sum(self._cut(values[0], summed[0]), axis=tuple(dim + 1 for dim in eqn.params["axes"]))

    def _cut(self, x: jax.Array, dims: tuple[int, ...]) -> jax.Array:
        """Cut dims, one for each axis, into the parts of their devices: (parts, ...)."""
        for num, (size, dim) in enumerate(zip(self.sizes.values(), dims, strict=True)):
            cut = x.reshape(*x.shape[: dim + num], size, -1, *x.shape[dim + num + 1 :])
            x = jnp.moveaxis(cut, dim + num, num)
        return x.reshape(self.num, *x.shape[len(dims) :])

    def _linear(self, eqn: Any, values: Sequence[Any], bind: Callable[..., list[Any]]) -> InParts:
        if eqn.primitive.name in _SUMS:
            return InParts(bind(*(self._as_parts(x).array for x in values))[0])
        arrays = [x.array if isinstance(x, InParts) else x for x in values]
        dims = [0 if isinstance(x, InParts) else None for x in values]
        return InParts(jax.vmap(lambda *arrays: bind(*arrays)[0], dims, spmd_axis_name=self.axes)(*arrays))

    def _as_parts(self, x: Any) -> InParts:
        """Return a value in parts: what was summed already is the first one's."""
        if isinstance(x, InParts):
            return x
        first = jnp.pad(x[None], [(0, self.num - 1), *[(0, 0)] * x.ndim])
        return InParts(self.place(first, P(self.axes)))


@dataclass(frozen=True)
class SplitBatch:
    """How what a layer takes is split over the devices of the batch.

    Attributes:
        parts: the devices.
        splits: how the leaves of all that it takes besides its own arrays are split.
    """

    parts: BatchParts
    splits: Sequence[Split]

    def of_results(self, layer: Any) -> list[Split]:
        """Return how the results of a traced layer are split, which takes its own arrays and then all these leaves."""
        own = len(layer.in_avals) - len(self.splits)
        return self.parts.splits(layer, [*[{}] * own, *self.splits])


def split_bodies(jaxpr: Any, splits: Sequence[Split], sizes: Mapping[str, int], place: Place) -> dict[int, SplitBatch]:
    """Return how the arguments of the body of each scan in a traced program are split over the devices of a batch.

    Args:
        jaxpr: the program.
        splits: how its arguments are split.
        sizes: the axes that split the batch, with their sizes.
        place: constrains where values live.

    Returns:
        That of each scan, by its identity.
    """
    along, parts = Propagation(sizes), BatchParts(sizes, place)
    scans = [each for each in along.operations(jaxpr, splits) if each[0].primitive.name == SCAN]
    return {id(scan): SplitBatch(parts, next(along.inside(scan, of)).splits) for scan, of in scans}


def named_splits(jaxpr: Any, splits: Sequence[Split], sizes: Mapping[str, int]) -> dict[str, Split]:
    """Return how the values are split that `checkpoint_name` has named in a traced program, by their names."""
    named = (each for each in Propagation(sizes).operations(jaxpr, splits) if each[0].primitive.name == "name")
    return {eqn.params["name"]: of_operand for eqn, (of_operand, *_) in named}


def _may_be_in_parts(
    jaxpr: Any, known: Mapping[Any, Split], axes: Sequence[str], in_parts: Collection[int]
) -> set[Any]:
    """Return the sums over a batch in a program that go, linearly, into nothing but results in parts.

    Args:
        jaxpr: the program.
        known: how its values are split.
        axes: the axes that split the batch.
        in_parts: which of its results are to be in parts.
    """
    sums: set[Any] = set()
    for eqn in jaxpr.eqns:
        if (
            eqn.primitive.name in _CALLS
            or _summed_dims(eqn, _splits(known, eqn), axes) is not None
            or any(_is_in(sums, eqn.invars[number]) for number in _linear_operands(eqn, sums))
        ):
            sums.update(eqn.outvars)
    apart: set[Any] = set()
    whole: set[Any] = set()  # whatever is read otherwise
    for number, atom in enumerate(jaxpr.outvars):
        (apart if number in in_parts else whole).update(() if isinstance(atom, Literal) else (atom,))
    for eqn in reversed(jaxpr.eqns):
        linear = _linear_operands(eqn, sums) if eqn.outvars[0] in apart - whole else ()
        for number, atom in enumerate(eqn.invars):
            (apart if number in linear else whole).update(() if isinstance(atom, Literal) else (atom,))
    return (apart & sums) - whole


def _linear_operands(eqn: Any, sums: Collection[Any]) -> tuple[int, ...]:
    """Return the operands in which an operation is linear: one, or all operands of a sum together."""
    name, result = eqn.primitive.name, eqn.outvars[0].aval
    if name == "mul":
        are_sums = [_is_in(sums, atom) for atom in eqn.invars]
        return (are_sums.index(True),) if sum(are_sums) == 1 else ()
    if name in _SUMS:
        return (0, 1) if all(atom.aval.shape == result.shape for atom in eqn.invars) else ()
    # A sum of parts that are rounded to a few bits each would be another number than the rounded sum.
    is_wide = jnp.issubdtype(result.dtype, jnp.floating) and result.dtype.itemsize > 1
    return (0,) if name in _OF_FIRST and is_wide else ()


def _is_in(values: Collection[Any], atom: Any) -> bool:
    return not isinstance(atom, Literal) and atom in values


def _splits(known: Mapping[Any, Split], eqn: Any) -> list[Split]:
    return [{} if isinstance(atom, Literal) else known.get(atom, {}) for atom in eqn.invars]


def _summed_dims(eqn: Any, splits: Sequence[Split], axes: Sequence[str]) -> list[tuple[int, ...]] | None:
    """Return for each operand of a sum over all axes the dim that each of them splits; None for anything else."""
    if eqn.primitive.name == "dot_general":
        pairs = list(zip(*eqn.params["dimension_numbers"][0], strict=True))
    elif eqn.primitive.name == "reduce_sum":
        pairs = [(dim,) for dim in eqn.params["axes"]]
    else:
        return None
    of_axes = [_pair(pairs, [split.get(axis) for split in splits]) for axis in axes]
    return None if None in of_axes else [tuple(dims) for dims in zip(*filter(None, of_axes), strict=True)]


def _pair(pairs: Sequence[tuple[int, ...]], claims: Sequence[Claim | None]) -> tuple[int, ...] | None:
    """Return the dims, one of each operand and summed over together, that an axis splits.

    Of one operand it may not be known how it is split; it must not be split otherwise.
    """
    if not any(claims):
        return None
    fitting = (
        pair
        for pair in pairs
        if all(claim is None or claim.dim == dim for claim, dim in zip(claims, pair, strict=True))
    )
    return next(fitting, None)
