"""Find the products of a traced function that read certain parameters, and run it with others in their place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax.extend.core import Literal, jaxprs_in_params

from outlay.core.jax_source import MARK
from outlay.core.jax_tracing import CALLS, CHECKPOINTS, COND, SCAN, operations, rerun, run_jaxpr, scan_operands
from outlay.core.primitives import KEEPS

_PRODUCT, _NAME = "dot_general", "name"
_ENTERED = (SCAN, COND, *CALLS, *CHECKPOINTS)
"""Operations that hold programs in which a product can be replaced."""
_PIECES = {"broadcast_in_dim", "concatenate", "dynamic_slice", "slice", "split", "stack", "unstack"}
_HANDED_ON = KEEPS | _PIECES | {MARK, "optimization_barrier"}
"""Operations whose results are the parameters themselves, cast, moved, or pieces of them."""


@dataclass(frozen=True)
class Origin:
    """The parameters that a value is made of.

    Attributes:
        paths: their paths.
        rule: the number of the rule that they are under.
    """

    paths: frozenset[str]
    rule: int


Origins = Sequence["Origin | None"]
"""Of each argument of a program, or of its constants and arguments; None for what comes from no such parameter."""
Multiply = Callable[[Any, list[Any], Origins, dict[Any, Any]], list[Any]]
"""`multiply(eqn, values, origins, shared)` returns the results of a product; `shared` lives as long as its operands."""


def run_with_products(jaxpr: Any, values: Sequence[Any], origins: Origins, multiply: Multiply) -> list[Any]:
    """Run a traced program with other operations for the products of parameters, wherever they are.

    Args:
        jaxpr: the program.
        values: its arguments.
        origins: the parameters that these are made of, or that its constants and these are made of.
        multiply: what runs instead of a product.
    """
    known, shared = _follow(jaxpr, origins), {}

    def evaluate(eqn: Any, values: list[Any], bind: Callable[..., list[Any]]) -> list[Any]:
        of = [_read(known, atom) for atom in eqn.invars]
        if _is_product(eqn, of):
            return multiply(eqn, values, of, shared)
        inside = _inside(eqn, of) if eqn.primitive.name in _ENTERED and any(of) else []
        if not any(next(products_in(*one), None) for one in inside):
            return bind(*values)

        def run(inner: Any, values: Sequence[Any]) -> list[Any]:
            within = next(origins for one, origins in inside if one is inner or one is getattr(inner, "jaxpr", None))
            return run_with_products(inner, values, within, multiply)

        return rerun(eqn, values, run)

    return run_jaxpr(jaxpr, values, evaluate)


def products_in(jaxpr: Any, origins: Origins) -> Iterator[Any]:
    """Yield the products of parameters that `run_with_products` replaces."""
    known = _follow(jaxpr, origins)
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        of = [_read(known, atom) for atom in eqn.invars]
        if _is_product(eqn, of):
            yield eqn
        elif eqn.primitive.name in _ENTERED and any(of):
            for inner, within in _inside(eqn, of):
                yield from products_in(inner, within)


def out_of_reach(jaxpr: Any, origins: Origins) -> Iterator[tuple[Any, frozenset[str]]]:
    """Yield operations on parameters that hold products out of reach, as functions with their own derivatives do.

    Each comes with the parameters that it takes.
    """
    known = _follow(jaxpr, origins)
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        of = [_read(known, atom) for atom in eqn.invars]
        if not any(of) or _is_product(eqn, of):
            continue
        if eqn.primitive.name in _ENTERED:
            for inner, within in _inside(eqn, of):
                yield from out_of_reach(inner, within)
        elif _multiplies(eqn):
            yield eqn, frozenset().union(*(one.paths for one in of if one is not None))


def named_origins(jaxpr: Any, origins: Origins) -> dict[str, Origin]:
    """Return the origins of the values of a traced program that `checkpoint_name` has named, by their names."""
    known, named = _follow(jaxpr, origins), {}
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        of = [_read(known, atom) for atom in eqn.invars]
        if eqn.primitive.name == _NAME and of[0] is not None:
            named[eqn.params["name"]] = of[0]
        elif any(of):
            for inner, within in _inside(eqn, of):
                named |= named_origins(inner, within)
    return named


def _multiplies(eqn: Any) -> bool:
    names = {_PRODUCT, "ragged_dot", "ragged_dot_general", "conv_general_dilated"}
    return eqn.primitive.name in names or any(
        one.primitive.name in names for inner in jaxprs_in_params(eqn.params) for one in operations(inner)
    )


def _is_product(eqn: Any, of: Origins) -> bool:
    """Return whether an operation is a product of parameters that 8 bits can stand for."""
    if eqn.primitive.name != _PRODUCT or not any(of):
        return False
    types = [atom.aval for atom in eqn.invars]
    are_floats = all(jnp.issubdtype(one.dtype, jnp.floating) and 1 < one.dtype.itemsize < 8 for one in types)
    return are_floats and all(one.size for one in types)


def _follow(jaxpr: Any, origins: Origins) -> Mapping[Any, Origin]:
    """Return the values of a program that are made of parameters."""
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    arguments = [*jaxpr.constvars, *jaxpr.invars][-len(origins) :] if origins else []
    known = {variable: origin for variable, origin in zip(arguments, origins, strict=True) if origin is not None}
    for eqn in jaxpr.eqns:
        of = [_read(known, atom) for atom in eqn.invars]
        if any(of):
            results = zip(eqn.outvars, _of_results(eqn, of), strict=True)
            known.update({variable: origin for variable, origin in results if origin is not None})
    return known


def _of_results(eqn: Any, of: Origins) -> Origins:
    name = eqn.primitive.name
    if name == "optimization_barrier":
        return of
    if name in _HANDED_ON and (name != "concatenate" or all(of)):
        own = [one for one in of if one is not None]
        merged = Origin(frozenset().union(*(one.paths for one in own)), min(one.rule for one in own))
        return [merged for _ in eqn.outvars]
    inside = _inside(eqn, of)
    if inside and name in (*CALLS, *CHECKPOINTS):
        inner, within = inside[0]
        known = _follow(inner, within)
        return [_read(known, atom) for atom in getattr(inner, "jaxpr", inner).outvars]
    return [None for _ in eqn.outvars]


def _inside(eqn: Any, of: Origins) -> list[tuple[Any, Origins]]:
    """Return the programs that an operation holds, each with the origins of its arguments."""
    inner = list(jaxprs_in_params(eqn.params))
    if eqn.primitive.name == SCAN:
        num_consts, num_carried = scan_operands(eqn.params)
        # What a turn hands to the next one need not be made of what the first had.
        within = [*of[:num_consts], *[None] * num_carried, *of[num_consts + num_carried :]]
        return [(one, within) for one in inner]
    if eqn.primitive.name == COND:
        return [(one, of[1:]) for one in inner]
    return [(one, of) for one in inner[:1] if len(getattr(one, "jaxpr", one).invars) == len(eqn.invars)]


def _read(known: Mapping[Any, Origin], atom: Any) -> Origin | None:
    return None if isinstance(atom, Literal) else known.get(atom)
