"""What a traced step computes and moves: products, fused attention, bytes of memory, launches; layers and the rest."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from jax.extend.core import Var, jaxprs_in_params

from outlay.core.array_leaves import num_bytes
from outlay.core.jax_tracing import SCAN
from outlay.core.primitives import KINDS
from outlay.core.traced_flops import flops_of, times_run
from outlay.search.liveness import Bytes, fused, is_fusible

_KERNEL = "dot_product_attention"
"""The beginning of the names of operations that are fused attention."""


@dataclass(frozen=True)
class Sum:
    """A sum over the inputs of products with weights: where those are split, devices add up their parts.

    Attributes:
        weights: the shapes of the weights, each with the dims that are summed over.
        num_bytes: the bytes of the result, on all devices together.
    """

    weights: frozenset[tuple[tuple[int, ...], tuple[int, ...]]]
    num_bytes: int


@dataclass
class Work:
    """The work of a part of a step, on all devices together.

    Attributes:
        products: FLOPs of matrix products.
        kernels: FLOPs of fused attention.
        moved: bytes that are read and written by all that computes entry by entry, or moves entries.
        num_products: matrix products, loops multiplied out.
        num_launches: operations that a compiler does not merge into others, loops multiplied out.
        sums: the sums of products with weights, with how often each is taken, loops multiplied out.
    """

    products: float = 0.0
    kernels: float = 0.0
    moved: Bytes = field(default_factory=Bytes)
    num_products: int = 0
    num_launches: int = 0
    sums: dict[Sum, int] = field(default_factory=dict)


@dataclass(frozen=True)
class StepWork:
    """The work of a step, on all devices together.

    Attributes:
        layers: that of its loops over layers.
        outside: all other: embedding, head, loss and the optimizer's update of other than parameters.
    """

    layers: Work = field(default_factory=Work)
    outside: Work = field(default_factory=Work)


def step_work(
    jaxpr: Any,
    whole: Container[tuple[int, ...]] = (),
    layers: Container[int] = (),
    shapes: Container[tuple[int, ...]] = (),
) -> StepWork:
    """Count the work of a traced step.

    What a compiler computes within a reader, or within its operand, is neither written nor read. Loops are multiplied
    out; what runs an unknown number of times counts once.

    Args:
        jaxpr: the result of `jax.make_jaxpr(f)(...)`.
        whole: shapes that are not counted as moved, such as those of parameters.
        layers: the lengths of loops over layers.
        shapes: those of what goes between layers.

    >>> work = step_work(jax.make_jaxpr(lambda x, w: jnp.sin(jnp.cos(x @ w)))(jnp.ones((4, 4)), jnp.ones((4, 4))))
    >>> work.outside.products, work.outside.moved.within  # the product is read once, and the sine is written
    (128.0, 128)
    """
    counted = StepWork()
    _count(getattr(jaxpr, "jaxpr", jaxpr), _Where(whole, layers, shapes), counted, 1, inside=False)
    return counted


@dataclass(frozen=True)
class _Where:
    whole: Container[tuple[int, ...]]
    layers: Container[int]
    shapes: Container[tuple[int, ...]]

    def sizes(self, variables: Iterable[Any]) -> Iterator[tuple[bool, int]]:
        """Yield for each array whether it goes between layers, and its bytes."""
        for one in variables:
            shape = getattr(one.aval, "shape", None)
            if shape is not None and tuple(shape) not in self.whole:
                yield tuple(shape) in self.shapes, num_bytes(shape, one.aval.dtype)


def _count(jaxpr: Any, where: _Where, counted: StepWork, times: int, *, inside: bool) -> None:
    """Add the work of a traced program that runs so often."""
    nowhere, read_by = fused(jaxpr), {}
    work = counted.layers if inside else counted.outside
    for one in _sums(jaxpr, where.whole):
        work.sums[one] = work.sums.get(one, 0) + times
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        bodies = list(jaxprs_in_params(eqn.params))
        if is_fusible(eqn):
            operands = frozenset(
                one for atom in eqn.invars if isinstance(atom, Var) for one in read_by.get(atom, frozenset([atom]))
            )
            read_by |= {out: operands for out in eqn.outvars if out in nowhere}
            if made := [out for out in eqn.outvars if out not in nowhere]:
                _move(work, where, [*made, *operands], times)
        elif name.startswith(_KERNEL):
            work.kernels += times * flops_of(eqn)
            work.num_launches += times
        elif name in KINDS["multiplies"]:
            work.products += times * flops_of(eqn)
            work.num_products += times
            work.num_launches += times
        elif bodies:
            in_layers = inside or (name == SCAN and eqn.params["length"] in where.layers)
            for body in bodies:
                _count(getattr(body, "jaxpr", body), where, counted, times * times_run(eqn), inside=in_layers)
        else:  # it moves entries: as many are read as are written
            _move(work, where, [*eqn.outvars, *eqn.outvars], times)


_HANDS_ON = KINDS["hands on"] | KINDS["converts"]


def _sums(jaxpr: Any, weights: Container[tuple[int, ...]]) -> Iterator[Sum]:
    """Yield the sums over products with weights; products that are added up at once are summed over devices at once."""
    sums: dict[Any, frozenset[Any]] = {}
    for eqn in jaxpr.eqns:
        name, atoms = eqn.primitive.name, [atom for atom in eqn.invars if isinstance(atom, Var)]
        if name == "dot_general":
            contracted = eqn.params["dimension_numbers"][0]
            for atom, dims in zip(reversed(eqn.invars), reversed(contracted), strict=True):
                if tuple(atom.aval.shape) in weights:
                    sums[eqn.outvars[0]] = frozenset([(tuple(atom.aval.shape), tuple(dims))])
                    break
        elif name in ("add", "add_any") and len(atoms) == 2 and all(atom in sums for atom in atoms):
            sums[eqn.outvars[0]] = sums.pop(atoms[0]) | sums.pop(atoms[1], frozenset())
        elif name in _HANDS_ON and len(atoms) == 1 and atoms[0] in sums:
            sums[eqn.outvars[0]] = sums.pop(atoms[0])
    for out, of in sums.items():
        yield Sum(of, num_bytes(out.aval.shape, out.aval.dtype))


def _move(work: Work, where: _Where, variables: Iterable[Any], times: int) -> None:
    """Add an operation that reads and writes some arrays."""
    sizes = list(where.sizes(variables))
    between = times * sum(size for is_between, size in sizes if is_between)
    within = times * sum(size for is_between, size in sizes if not is_between)
    work.moved = Bytes(work.moved.between + between, work.moved.within + within)
    # Numbers are computed beside what they are for.
    work.num_launches += times if any(math.prod(one.aval.shape) > 1 for one in variables if _has_shape(one)) else 0


def _has_shape(one: Any) -> bool:
    return hasattr(one.aval, "shape")
