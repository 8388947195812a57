"""Find the scans of a traced program that read stacked leaves, and run the program with something in their place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.extend.core import Literal, jaxprs_in_params

from outlay.core.jax_tracing import CALLS, CHECKPOINTS, COND, SCAN, rerun, run_jaxpr, scan_operands
from outlay.models.layers import STACKED
from outlay.program.dim_mapping import dims_of

_ENTERED = (SCAN, COND, *CALLS, *CHECKPOINTS)
"""Operations that hold programs in which a scan can be replaced."""
_NAME = "name"
_EACH = "optimization_barrier"
"""An operation with as many results as operands, each unchanged."""


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


def run_with(jaxpr: Any, counterpart: Any, values: Sequence[Any], stacks: Stacks, stand_in: Replace) -> list[Any]:
    """Run a traced program with other operations for the scans that read stacks.

    Args:
        jaxpr: the program.
        counterpart: the same for other shapes: each scan is replaced knowing its counterpart there.
        values: its arguments.
        stacks: which of them are stacks.
        stand_in: what runs instead of such a scan.
    """
    pairs = {id(eqn): other for eqn, other in _pairs(jaxpr, counterpart, stacks)}
    known = _follow(jaxpr, stacks)

    def evaluate(eqn: Any, values: list[Any], bind: Callable[..., list[Any]]) -> list[Any]:
        other = pairs.get(id(eqn))
        if other is None:
            return bind(*values)
        of_operands = [_read(known, atom) for atom in eqn.invars]
        if scanned_leaves(eqn, of_operands):
            return stand_in(eqn, other, values, of_operands)
        others, inside = [*jaxprs_in_params(other.params)], _inside(eqn, of_operands)

        def run(inner: Any, values: Sequence[Any]) -> list[Any]:
            place = next(
                place for place, (one, _) in enumerate(inside) if one is inner or one is getattr(inner, "jaxpr", None)
            )
            return run_with(inner, others[place], values, inside[place][1], stand_in)

        return rerun(eqn, values, run)

    return run_jaxpr(jaxpr, values, evaluate)


def opened_to_scans(jaxpr: Any, stacks: Stacks) -> Any:
    """Return a traced program with the calls and checkpoints opened that hold scans over stacks.

    Args:
        jaxpr: the program, without constants.
        stacks: which of its arguments are stacks.
    """

    def run(inner: Any, values: Sequence[Any], stacks: Stacks) -> list[Any]:
        known = _follow(inner, stacks)

        def evaluate(eqn: Any, values: list[Any], bind: Callable[..., list[Any]]) -> list[Any]:
            of_operands = [_read(known, atom) for atom in eqn.invars]
            opens = eqn.primitive.name in (*CALLS, *CHECKPOINTS) and any(of_operands)
            inside = _inside(eqn, of_operands) if opens else []
            if any(next(scans_over(*one), None) for one in inside):
                return run(inside[0][0], values, inside[0][1])
            return bind(*values)

        return run_jaxpr(inner, values, evaluate)

    return jax.make_jaxpr(lambda *values: run(jaxpr, values, stacks))(*jaxpr.in_avals)


def top_scans(jaxpr: Any, stacks: Stacks) -> list[tuple[int, frozenset[str]]]:
    """Return the places of the scans over stacks among a program's own operations, each with the leaves it reads."""
    known = _follow(jaxpr, stacks)
    scans = []
    for place, eqn in enumerate(jaxpr.jaxpr.eqns):
        if paths := scanned_leaves(eqn, [_read(known, atom) for atom in eqn.invars]):
            scans.append((place, paths))
    return scans


def scans_over(jaxpr: Any, stacks: Stacks) -> Iterator[tuple[Any, frozenset[str]]]:
    """Yield the scans that read stacks, wherever they are, each with the leaves that it reads."""
    known = _follow(jaxpr, stacks)
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        of_operands = [_read(known, atom) for atom in eqn.invars]
        if paths := scanned_leaves(eqn, of_operands):
            yield eqn, paths
        elif any(of_operands):
            for inner, of_arguments in _inside(eqn, of_operands):
                yield from scans_over(inner, of_arguments)


def named_stacks(jaxpr: Any, stacks: Stacks) -> dict[str, Stack]:
    """Return the stacks among the values of a traced program that `checkpoint_name` has named, by their names."""
    known, named = _follow(jaxpr, stacks), {}
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        of_operands = [_read(known, atom) for atom in eqn.invars]
        if eqn.primitive.name == _NAME and of_operands[0] is not None:
            named[eqn.params["name"]] = of_operands[0]
        elif any(of_operands):
            for inner, of_arguments in _inside(eqn, of_operands):
                named |= named_stacks(inner, of_arguments)
    return named


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
    known = _follow(jaxpr, stacks)
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        of_operands = [_read(known, atom) for atom in eqn.invars]
        inside = _inside(eqn, of_operands) if eqn.primitive.name in _ENTERED and any(of_operands) else []
        if scanned_leaves(eqn, of_operands) or any(next(scans_over(*one), None) for one in inside):
            yield eqn


def scanned_leaves(eqn: Any, of_operands: Stacks) -> frozenset[str]:
    """Return the leaves over whose layers an operation scans; empty if it is no such scan."""
    if eqn.primitive.name != SCAN:
        return frozenset()
    scanned = of_operands[sum(scan_operands(eqn.params)) :]
    return frozenset().union(*(one.paths for one in scanned if one is not None and one.dim == 0))


def _follow(jaxpr: Any, stacks: Stacks) -> dict[Any, Stack]:
    """Return the values of a program that are stacks."""
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    known = {variable: stack for variable, stack in zip(jaxpr.invars, stacks, strict=True) if stack is not None}
    for eqn in jaxpr.eqns:
        of_operands = [_read(known, atom) for atom in eqn.invars]
        if any(of_operands):
            of_results = _of_results(eqn, of_operands)
            known.update({one: stack for one, stack in zip(eqn.outvars, of_results, strict=True) if stack is not None})
    return known


def _of_results(eqn: Any, of_operands: Stacks) -> list[Stack | None]:
    if eqn.primitive.name == _EACH:
        return [*of_operands]
    if eqn.primitive.name == _NAME and eqn.params["name"] == STACKED and of_operands[0] is not None:
        return [Stack(of_operands[0].paths, 0, is_of_list=True)]
    inside = _inside(eqn, of_operands)
    if inside and eqn.primitive.name not in (SCAN, COND):
        inner, of_arguments = inside[0]
        known = _follow(inner, of_arguments)
        return [_read(known, atom) for atom in getattr(inner, "jaxpr", inner).outvars]
    if inside:
        return [None for _ in eqn.outvars]
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


def _inside(eqn: Any, of_operands: Stacks) -> list[tuple[Any, Stacks]]:
    """Return the programs that an operation holds, each with the stacks among its arguments."""
    inner = list(jaxprs_in_params(eqn.params))
    if eqn.primitive.name == SCAN:
        unscanned = sum(scan_operands(eqn.params))
        sliced = [
            replace(one, dim=one.dim - 1) if one is not None and one.dim > 0 else None
            for one in of_operands[unscanned:]
        ]
        return [(one, [*of_operands[:unscanned], *sliced]) for one in inner]
    if eqn.primitive.name == COND:
        return [(one, of_operands[1:]) for one in inner]
    return [(one, of_operands) for one in inner[:1] if len(getattr(one, "jaxpr", one).invars) == len(eqn.invars)]


def _read(known: dict[Any, Stack], atom: Any) -> Stack | None:
    return None if isinstance(atom, Literal) else known.get(atom)
