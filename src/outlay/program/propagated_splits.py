"""Follow through a traced step over which mesh axes the dims of its values are split, from its inputs on.

The compiler settles this for itself. What it is needed for here: an operation that works on each sample by itself, and
that the compiler does not split, is told over which axes its samples lie (`per_shard_operations.py`). A wrong answer
moves more data than it must, and changes no number. Where two operands disagree, samples go before parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jax.extend.core import ClosedJaxpr, Jaxpr, Literal
from jax.sharding import PartitionSpec

from outlay.core.jax_tracing import COND, SCAN, WHILE, scan_operands
from outlay.layout.placement import spec_dims
from outlay.program.dim_mapping import Dims, dims_of
from outlay.program.independent_dims import Factors, independent


class Claim(NamedTuple):
    """A dim that a mesh axis splits, and how little that says: 0 for samples and constraints, 1 for other inputs."""

    dim: int
    rank: int


WEAK = 2
"""The rank of claims of those that take a value: behind all that follow from inputs."""

Split = Mapping[str, Claim]
"""How an array is split: its dim by mesh axis."""


def split_of(spec: PartitionSpec, rank: int) -> Split:
    """Return how an array under a spec is split."""
    return {axis: Claim(dim, rank) for dim, axes in enumerate(spec_dims(spec, 0)) for axis in axes}


def joined(*splits: Split) -> Split:
    """Join what several say of one array: the claim of the lowest rank, the first of equal ones, holds an axis."""
    claims: dict[str, Claim] = {}
    for split in splits:
        for axis, claim in split.items():
            if axis not in claims or claim.rank < claims[axis].rank:
                claims[axis] = claim
    return claims


def moved(split: Split, dims: Mapping[int, int]) -> Split:
    """Return a split with its dims renumbered; unlisted dims are dropped."""
    return {axis: Claim(dims[dim], rank) for axis, (dim, rank) in split.items() if dim in dims}


@dataclass(frozen=True)
class Inner:
    """A program inside an operation.

    Attributes:
        param: the parameter of the operation that holds it.
        place: its place there, if that holds several.
        jaxpr: the program.
        splits: how its operands are split.
        asked: how those who take its results would have them split.
    """

    param: str
    place: int | str | None
    jaxpr: Any
    splits: list[Split]
    asked: list[Split]


@dataclass(frozen=True)
class Propagation:
    """Follows splits over a mesh.

    Attributes:
        sizes: the size of each mesh axis that splits something.
    """

    sizes: Mapping[str, int]
    _results: dict[Any, list[Split]] = field(default_factory=dict, compare=False)

    def forward(self, jaxpr: Any, splits: Sequence[Split]) -> dict[Any, Split]:
        """Return how the values of a traced program are split, from how its operands are."""
        jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
        known = dict(zip(jaxpr.invars, splits, strict=True))
        for eqn in jaxpr.eqns:
            results = self.results(eqn, [_read(known, atom) for atom in eqn.invars])
            known.update(zip(eqn.outvars, results, strict=True))
        return known

    def backward(self, jaxpr: Any, known: Mapping[Any, Split], asked: Sequence[Split]) -> dict[Any, Split]:
        """Return how the values of a traced program would be split to suit their users.

        Args:
            jaxpr: the program.
            known: how its values are split, as `forward` returns it.
            asked: how those who take its results would have them split.
        """
        jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
        suiting: dict[Any, Split] = {}
        for atom, split in zip(jaxpr.outvars, asked, strict=True):
            if not isinstance(atom, Literal):
                suiting[atom] = joined(suiting.get(atom, {}), split)
        for eqn in reversed(jaxpr.eqns):
            results = [joined(known.get(one, {}), suiting.get(one, {})) for one in eqn.outvars]
            operands = self._suiting(eqn, [_read(known, atom) for atom in eqn.invars], results)
            for atom, split in zip(eqn.invars, operands, strict=True):
                if split and not isinstance(atom, Literal):
                    suiting[atom] = joined(suiting.get(atom, {}), self._fitting(_weaker(split), atom.aval))
        return suiting

    def through(self, jaxpr: Any, splits: Sequence[Split]) -> list[Split]:
        """Return how the results of a traced program are split, from how its operands are."""
        key = (id(jaxpr), tuple(tuple(sorted(split.items())) for split in splits))
        if key not in self._results:
            known = self.forward(jaxpr, splits)
            self._results[key] = [_read(known, atom) for atom in getattr(jaxpr, "jaxpr", jaxpr).outvars]
        return self._results[key]

    def operations(self, jaxpr: Any, splits: Sequence[Split]) -> Iterator[tuple[Any, list[Split]]]:
        """Yield the operations of a traced program and of all programs in it, each with how its operands are split."""
        known = self.forward(jaxpr, splits)
        for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
            of_operands = [_read(known, atom) for atom in eqn.invars]
            yield eqn, of_operands
            for one in self.inside(eqn, of_operands):
                yield from self.operations(one.jaxpr, one.splits)

    def _suiting(self, eqn: Any, splits: Sequence[Split], results: Sequence[Split]) -> list[Split]:
        """Return how the operands of an operation would be split to suit its results, and one another."""
        name = eqn.primitive.name
        if name == "optimization_barrier":
            return list(results)
        if name in (SCAN, WHILE, COND, "custom_linear_solve"):
            return [{} for _ in splits]
        inner = list(self.inside(eqn, splits, results))
        if inner:
            one = inner[0]
            suiting = self.backward(one.jaxpr, self.forward(one.jaxpr, one.splits), one.asked)
            return [suiting.get(variable, {}) for variable in getattr(one.jaxpr, "jaxpr", one.jaxpr).invars]
        factors = independent(eqn)
        if factors is not None:
            held = axes_of(factors.results, results)
            return [_of_factors(held, of_dims) for of_dims in factors.operands]
        dims = dims_of(eqn)
        suiting = [moved(results[0], {to: dim for dim, to in each.items()}) for each in dims] if results else []
        suiting += [{} for _ in splits[len(suiting) :]]
        if name == "dot_general":
            (left, right), _ = eqn.params["dimension_numbers"]
            pairs = {int(there): int(here) for here, there in zip(left, right, strict=True)}
            suiting[0] = joined(suiting[0], moved(splits[1], pairs))
            suiting[1] = joined(suiting[1], moved(splits[0], {here: there for there, here in pairs.items()}))
        return suiting

    def results(self, eqn: Any, splits: Sequence[Split]) -> list[Split]:
        """Return how the results of an operation are split."""
        results = self._of_inner(eqn, splits) or self._of_rule(eqn, splits)
        return [self._fitting(split, variable.aval) for split, variable in zip(results, eqn.outvars, strict=True)]

    def inside(self, eqn: Any, splits: Sequence[Split], asked: Sequence[Split] = ()) -> Iterator[Inner]:
        """Yield the programs inside an operation.

        Args:
            eqn: the operation.
            splits: how its operands are split.
            asked: how those who take its results would have them split.
        """
        params, name = eqn.params, eqn.primitive.name
        asked = list(asked or [{} for _ in eqn.outvars])
        if name == SCAN:
            _, num_carried = scan_operands(params)
            of_turn = [*asked[:num_carried], *(_shifted(split, -1) for split in asked[num_carried:])]
            yield Inner("jaxpr", None, params["jaxpr"], self._turn(params, splits), of_turn)
        elif name == WHILE:
            first, second = params["cond_nconsts"], params["body_nconsts"]
            of_body, start = list(splits[first : first + second]), list(splits[first + second :])
            carried = self._settled(lambda now: self.through(params["body_jaxpr"], [*of_body, *now]), start)
            yield Inner("cond_jaxpr", None, params["cond_jaxpr"], [*splits[:first], *carried], [{}])
            yield Inner("body_jaxpr", None, params["body_jaxpr"], [*of_body, *carried], asked)
        elif name == COND:
            for place, branch in enumerate(params["branches"]):
                yield Inner("branches", place, branch, list(splits[1:]), asked)
        elif name == "custom_linear_solve":
            yield self._solve(params, splits, asked)
        else:
            of_params = [(key, value) for key, value in params.items() if isinstance(value, Jaxpr | ClosedJaxpr)]
            if name != "shard_map" and len(of_params) == 1:
                key, jaxpr = of_params[0]
                if len(getattr(jaxpr, "jaxpr", jaxpr).invars) == len(splits):
                    yield Inner(key, None, jaxpr, list(splits), asked)

    def _of_inner(self, eqn: Any, splits: Sequence[Split]) -> list[Split]:
        """Return the results' splits of an operation that holds programs; empty for any other."""
        inner = list(self.inside(eqn, splits))
        if not inner:
            return []
        if eqn.primitive.name != COND:
            inner = inner[-1:]
        ends = [self.through(one.jaxpr, one.splits) for one in inner]
        results = [joined(*of_one) for of_one in zip(*ends, strict=True)]
        if eqn.primitive.name != SCAN:
            return results
        _, num_carried = scan_operands(eqn.params)
        return [*results[:num_carried], *(_shifted(split, 1) for split in results[num_carried:])]

    def _turn(self, params: Any, splits: Sequence[Split]) -> list[Split]:
        """Return how the operands of a turn of a scan are split."""
        num_consts, num_carried = scan_operands(params)
        consts, start = list(splits[:num_consts]), list(splits[num_consts:][:num_carried])
        slices = [_shifted(split, -1) for split in splits[num_consts + num_carried :]]

        def body(now: list[Split]) -> list[Split]:
            return self.through(params["jaxpr"], [*consts, *now, *slices])[:num_carried]

        return [*consts, *self._settled(body, start), *slices]

    def _settled(self, body: Callable[[list[Split]], list[Split]], start: list[Split]) -> list[Split]:
        """Return how what a loop carries is split: as it starts, and as its turns leave it."""
        carried = start
        for _ in range(len(self.sizes) + 1):
            after = [joined(*both) for both in zip(carried, body(carried), strict=True)]
            if after == carried:
                break
            carried = after
        return carried

    @staticmethod
    def _solve(params: Any, splits: Sequence[Split], asked: list[Split]) -> Inner:
        """Return the program that a linear solve runs; the others are for its derivatives."""
        lengths = params["const_lengths"]
        first = lengths.matvec + lengths.vecmat
        consts = splits[first : first + lengths.solve]
        right_sides = splits[sum(lengths) :]
        return Inner("jaxprs", "solve", params["jaxprs"].solve, [*consts, *right_sides], asked)

    def _of_rule(self, eqn: Any, splits: Sequence[Split]) -> list[Split]:
        if eqn.primitive.name == "sharding_constraint":
            return [_constrained(eqn.params["sharding"], splits[0])]
        if eqn.primitive.name == "optimization_barrier":
            return list(splits)
        if eqn.primitive.name == "shard_map":
            return [split_of(spec, 0) for spec in eqn.params["out_specs"]]
        factors = independent(eqn)
        if factors is not None:
            axes = axes_of(factors.operands, splits)
            return [_of_factors(axes, one) for one in factors.results]
        operands = dims_of(eqn)
        if eqn.primitive.name == "reshape":
            shape = eqn.invars[0].aval.shape
            operands, splits = [self._merged(operands[0], splits[0], shape)], [_by_dim(splits[0])]
        split = joined(*(moved(split, dims) for split, dims in zip(splits, operands, strict=False)))
        return [split] * len(eqn.outvars)

    def _merged(self, dims: Dims, split: Split, shape: Sequence[int]) -> Dims:
        """Add dims behind dims with a single entry a device, where a reshape merges them.

        Samples of a stage, (stages, samples), become (stages * samples): a device's are still one piece of it.
        """
        parts: dict[int, int] = {}
        for axis, (dim, _) in split.items():
            parts[dim] = parts.get(dim, 1) * self.sizes.get(axis, 1)
        added, into = dict(dims), None
        for dim, size in enumerate(shape):
            into = dims.get(dim, into)
            if into is not None:
                added[dim] = into
            if parts.get(dim, 1) != size:
                into = None
        return added

    def _fitting(self, split: Split, aval: Any) -> Split:
        """Leave out axes that do not divide their dim."""
        shape, parts, fitting = getattr(aval, "shape", ()), {}, {}
        for axis, claim in split.items():
            num = parts.get(claim.dim, 1) * self.sizes.get(axis, 1)
            if axis in self.sizes and claim.dim < len(shape) and shape[claim.dim] and shape[claim.dim] % num == 0:
                parts[claim.dim], fitting[axis] = num, claim
        return fitting


Held = dict[str, tuple[Hashable, int]]
"""By mesh axis: the factor of an operation whose dims it splits, and the rank of that claim."""


def axes_of(factors: Sequence[Factors], splits: Sequence[Split]) -> Held:
    """Return which mesh axes hold the factors of an operation, from how its operands or results are split."""
    held: Held = {}
    for of_dims, split in zip(factors, splits, strict=True):
        for axis, (dim, rank) in split.items():
            if of_dims[dim] is not None and (axis not in held or rank < held[axis][1]):
                held[axis] = of_dims[dim], rank
    return held


def _of_factors(held: Held, of_dims: Factors) -> Split:
    return {axis: Claim(of_dims.index(factor), rank) for axis, (factor, rank) in held.items() if factor in of_dims}


def _read(known: Mapping[Any, Split], atom: Any) -> Split:
    return {} if isinstance(atom, Literal) else known.get(atom, {})


def _weaker(split: Split) -> Split:
    """Return the same claims with a rank below claims from inputs."""
    return {axis: Claim(claim.dim, WEAK) for axis, claim in split.items()}


def _by_dim(split: Split) -> Split:
    """Return a split with its axes in the order of their dims: of two on one dim, the first is the outer one."""
    return dict(sorted(split.items(), key=lambda item: item[1].dim))


def _shifted(split: Split, by: int) -> Split:
    """Return the split of a stack from that of its entries, or the other way round."""
    return {axis: Claim(dim + by, rank) for axis, (dim, rank) in split.items() if dim + by >= 0}


def _constrained(sharding: Any, before: Split) -> Split:
    spec = getattr(sharding, "spec", None)
    if spec is None:
        return before
    is_open = {dim for dim, axes in enumerate(spec) if axes is PartitionSpec.UNCONSTRAINED}
    free = {axis: claim for axis, claim in before.items() if claim.dim in is_open}
    return {**split_of(PartitionSpec(*(None if dim in is_open else axes for dim, axes in enumerate(spec))), 0), **free}
