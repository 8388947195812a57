"""Find the scans of a traced program that read stacked leaves, and run the program with something in their place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.extend.core import jaxprs_in_params

from outlay.core.jax_tracing import CALLS, CHECKPOINTS, COND, SCAN, rerun, run_jaxpr
from outlay.models.layers import STACKED
from outlay.program.dim_mapping import dims_of
from outlay.program.value_facts import NAME, FactRules, facts_of, split_scan

_ENTERED = (SCAN, COND, *CALLS, *CHECKPOINTS)
"""Operations that hold programs in which a scan can be replaced."""


@dataclass(frozen=True)
class Stack:
    """What stacked leaves became: a value of which one dim still counts their layers.

    Attributes:
        paths: the leaves that it was computed from.
        dim: the dim.
        is_of_list: whether it was stacked of the leaves of a list, by `outlay.layers`.
    """

    paths: frozenset[str]
    dim: int
    is_of_list: bool = False


Stacks = Sequence["Stack | None"]
Replace = Callable[[Any, Any, list[Any], Stacks], list[Any]]
"""`stand_in(scan, counterpart, values, of_operands)` returns the results of a scan, knowing its operands' stacks."""
Constrain = Callable[[Any, Any, Any], Any]
"""`constrain(constraint, counterpart, value)` returns a value that is placed otherwise; None to keep the constraint."""


def run_with(
    jaxpr: Any, counterpart: Any, values: Sequence[Any], stacks: Stacks, stand_in: Replace, constrain: Constrain
) -> list[Any]:
    """Run a traced program with other operations for the scans that read stacks.

    Args:
        jaxpr: the program.
        counterpart: the same for other shapes: each scan is replaced knowing its counterpart there.
        values: its arguments.
        stacks: which of them are stacks.
        stand_in: what runs instead of such a scan.
        constrain: what may run instead of the program's own constraints, outside of loops.
    """
    constraints = _constraints(jaxpr, counterpart)
    pairs = {id(eqn): other for eqn, other in _pairs(jaxpr, counterpart, stacks)}
    known = STACKS.known(jaxpr, stacks)

    def evaluate(eqn: Any, values: list[Any], bind: Callable[..., list[Any]]) -> list[Any]:
        if (same := constraints.get(id(eqn))) is not None:
            placed = constrain(eqn, same, values[0])
            return bind(*values) if placed is None else [placed]
        other = pairs.get(id(eqn))
        if other is None:
            return bind(*values)
        of_operands = facts_of(known, eqn.invars)
        if scanned_leaves(eqn, of_operands):
            return stand_in(eqn, other, values, of_operands)
        others, inside = [*jaxprs_in_params(other.params)], STACKS.inside(eqn, of_operands)

        def run(inner: Any, values: Sequence[Any]) -> list[Any]:
            place = next(
                place for place, (one, _) in enumerate(inside) if one is inner or one is getattr(inner, "jaxpr", None)
            )
            return run_with(inner, others[place], values, inside[place][1], stand_in, constrain)

        return rerun(eqn, values, run)

    return run_jaxpr(jaxpr, values, evaluate)


def _constraints(jaxpr: Any, counterpart: Any) -> dict[int, Any]:
    """Return the counterparts of a program's own constraints, by their identity; none if the programs have others."""
    eqns, others = (
        [eqn for eqn in getattr(each, "jaxpr", each).eqns if eqn.primitive.name == "sharding_constraint"]
        for each in (jaxpr, counterpart)
    )
    return {id(eqn): other for eqn, other in zip(eqns, others, strict=True)} if len(eqns) == len(others) else {}


def opened_to_scans(jaxpr: Any, stacks: Stacks) -> Any:
    """Return a traced program with the calls and checkpoints opened that hold scans over stacks.

    Args:
        jaxpr: the program, without constants.
        stacks: which of its arguments are stacks.
    """

    def run(inner: Any, values: Sequence[Any], stacks: Stacks) -> list[Any]:
        known = STACKS.known(inner, stacks)

        def evaluate(eqn: Any, values: list[Any], bind: Callable[..., list[Any]]) -> list[Any]:
            of_operands = facts_of(known, eqn.invars)
            opens = eqn.primitive.name in (*CALLS, *CHECKPOINTS) and any(of_operands)
            inside = STACKS.inside(eqn, of_operands) if opens else []
            if any(next(scans_over(*one), None) for one in inside):
                return run(inside[0][0], values, inside[0][1])
            return bind(*values)

        return run_jaxpr(inner, values, evaluate)

    return jax.make_jaxpr(lambda *values: run(jaxpr, values, stacks))(*jaxpr.in_avals)


def top_scans(jaxpr: Any, stacks: Stacks) -> list[tuple[int, frozenset[str]]]:
    """Return the places of the scans over stacks among a program's own operations, each with the leaves it reads."""
    scans = enumerate(scanned_leaves(*each) for each in STACKS.operations(jaxpr, stacks))
    return [(place, paths) for place, paths in scans if paths]


def scans_over(jaxpr: Any, stacks: Stacks) -> Iterator[tuple[Any, frozenset[str]]]:
    """Yield the scans that read stacks, wherever they are, each with the leaves that it reads."""
    for eqn, of_operands in STACKS.operations(jaxpr, stacks):
        if paths := scanned_leaves(eqn, of_operands):
            yield eqn, paths
        elif any(of_operands):
            for inner, of_arguments in STACKS.inside(eqn, of_operands):
                yield from scans_over(inner, of_arguments)


class Unpaired(Exception):
    """The two traces of a program do not have the same scans.

    Attributes:
        eqn: the first operation of the first trace without a counterpart; None if the second has more.
    """

    def __init__(self, eqn: Any) -> None:
        super().__init__()
        self.eqn = eqn


def _pairs(jaxpr: Any, counterpart: Any, stacks: Stacks) -> list[tuple[Any, Any]]:
    """Pair the operations that are, or hold, scans that are replaced."""
    eqns, others = (list(_entered(each, stacks)) for each in (jaxpr, counterpart))
    for number, eqn in enumerate(eqns):
        if number >= len(others) or eqn.primitive.name != others[number].primitive.name:
            raise Unpaired(eqn)
    if len(others) > len(eqns):
        raise Unpaired(None)
    return list(zip(eqns, others, strict=True))


def _entered(jaxpr: Any, stacks: Stacks) -> Iterator[Any]:
    for eqn, of_operands in STACKS.operations(jaxpr, stacks):
        inside = STACKS.inside(eqn, of_operands) if eqn.primitive.name in _ENTERED and any(of_operands) else []
        if scanned_leaves(eqn, of_operands) or any(next(scans_over(*one), None) for one in inside):
            yield eqn


def scanned_leaves(eqn: Any, of_operands: Stacks) -> frozenset[str]:
    """Return the leaves over whose layers an operation scans; empty if it is no such scan."""
    if eqn.primitive.name != SCAN:
        return frozenset()
    *_, scanned = split_scan(eqn, of_operands)
    return frozenset().union(*(one.paths for one in scanned if one is not None and one.dim == 0))


def _of_results(eqn: Any, of_operands: Stacks) -> Stacks:
    if eqn.primitive.name == NAME and eqn.params["name"] == STACKED and of_operands[0] is not None:
        return [Stack(of_operands[0].paths, 0, is_of_list=True)]
    moved = dims_of(eqn)
    after = [
        Stack(stack.paths, moved[place][stack.dim], stack.is_of_list)
        for place, stack in enumerate(of_operands)
        if stack is not None and place < len(moved) and stack.dim in moved[place]
    ]
    dims = {stack.dim for stack in after}
    if len(dims) != 1:
        return [None for _ in eqn.outvars]
    paths = frozenset().union(*(stack.paths for stack in after))
    result = Stack(paths, dims.pop(), all(stack.is_of_list for stack in after))
    return [result for _ in eqn.outvars]


def _in_scan(eqn: Any, of_operands: Stacks) -> Stacks:
    of_all, carried, scanned = split_scan(eqn, of_operands)
    sliced = [replace(one, dim=one.dim - 1) if one is not None and one.dim > 0 else None for one in scanned]
    return [*of_all, *carried, *sliced]


STACKS = FactRules(_of_results, _in_scan, lambda name: name not in (SCAN, COND))
"""How stacks go through a program."""
