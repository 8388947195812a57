"""Split a traced backward pass in two: what gradients of inputs need, and the rest, for gradients of weights.

The first half runs before the second, and hands on every value that both use, so that nothing is computed twice. A scan
over layers is split inside: its first half carries gradients from layer to layer, and stacks what the second half, a
scan of its own, makes gradients of weights from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
from jax.extend.core import Literal, jaxprs_in_params

from outlay.core.jax_needed_operations import needed_for
from outlay.core.jax_tracing import (
    CALLS,
    CHECKPOINTS,
    SCAN,
    Operations,
    operations,
    replay,
    rerun_scan,
    run_jaxpr,
    scan_operands,
)
from outlay.program.stages.plain_keys import impl_of, with_impl, without_impl


@dataclass(frozen=True)
class _Halves:
    """Some operations in two halves.

    Attributes:
        first: the operations of the first half.
        second: those of the second.
        crossing: the values that the first half computes and the second takes.
        split: the scans that are in both, by their identity.
    """

    first: list[Any]
    second: list[Any]
    crossing: list[Any]
    split: dict[int, _SplitScan] = field(default_factory=dict)


@dataclass(frozen=True)
class _SplitScan:
    """A scan in two halves: which of its carry belongs to the first, and its body's halves."""

    is_first_carry: list[bool]
    is_first_output: list[bool]
    body: _Halves


class BackwardHalves:
    """A backward pass in two halves.

    Args:
        jaxpr: the whole, a traced program without constants.
        num_inputs: so many of its first results are gradients of inputs.
    """

    def __init__(self, jaxpr: Any, num_inputs: int) -> None:
        self._jaxpr, self._num_inputs = opened(jaxpr), num_inputs
        self._impls: list[Any] = []
        inner = self._jaxpr.jaxpr
        self._halves = _halves(inner.eqns, set(_variables(inner.outvars[:num_inputs])), _variables(inner.outvars))

    def inputs(self, *values: Any) -> tuple[list[Any], list[Any]]:
        """Return the gradients of inputs, and what the second half takes."""
        results = self._jaxpr.jaxpr.outvars[: self._num_inputs]
        given, crossing = _run_first(self._halves, self._known(values), results)
        self._impls = [*map(impl_of, crossing)]
        return given, [*map(without_impl, crossing)]

    def weights(self, values: Sequence[Any], crossing: Sequence[Any]) -> list[Any]:
        """Return the gradients of weights.

        Args:
            values: the arguments of the whole.
            crossing: what the first half has handed on.
        """
        results = self._jaxpr.jaxpr.outvars[self._num_inputs :]
        crossing = [*map(with_impl, crossing, self._impls)]  # the first half is always traced before
        return _run_second(self._halves, self._known(values), crossing, results)

    def _known(self, values: Sequence[Any]) -> dict[Any, Any]:
        inner = self._jaxpr.jaxpr
        return dict(zip([*inner.constvars, *inner.invars], [*self._jaxpr.consts, *values], strict=True))


def opened(jaxpr: Any) -> Any:
    """Return a traced program with its calls and checkpoints opened, in its scans too."""

    def run(inner: Any, values: Sequence[Any]) -> list[Any]:
        return run_jaxpr(inner, values, evaluate)

    def evaluate(eqn: Any, values: list[Any], bind: Any) -> list[Any]:
        if eqn.primitive.name in (*CALLS, *CHECKPOINTS):
            return run(next(iter(jaxprs_in_params(eqn.params))), values)
        if eqn.primitive.name == SCAN and any(_has_calls(inner) for inner in jaxprs_in_params(eqn.params)):
            return rerun_scan(eqn.params, values, lambda turn: run(eqn.params["jaxpr"], turn))
        return bind(*values)

    return needed_for(jax.make_jaxpr(lambda *values: run(jaxpr, values))(*jaxpr.in_avals))[0]


def _has_calls(jaxpr: Any) -> bool:
    return any(eqn.primitive.name in (*CALLS, *CHECKPOINTS) for eqn in operations(jaxpr))


def _halves(eqns: Sequence[Any], for_first: set[Any], results: Sequence[Any]) -> _Halves:
    """Split operations by what some results need."""
    needed, first, split = set(for_first), [], dict[int, _SplitScan]()
    for eqn in reversed(eqns):
        is_needed = [var in needed for var in eqn.outvars]
        if not any(is_needed):
            continue
        first.insert(0, eqn)
        halved = _split_scan(eqn, is_needed) if eqn.primitive.name == SCAN and not all(is_needed) else None
        if halved is not None:
            split[id(eqn)] = halved
        needed.update(_variables(_operands(eqn, halved, first=True)))
    in_first = {id(eqn) for eqn in first}
    second = [eqn for eqn in eqns if id(eqn) not in in_first or id(eqn) in split]
    made = {var for eqn in first for var in _results(eqn, split.get(id(eqn)), first=True)}
    taken = dict.fromkeys(_variables(results))
    for eqn in second:
        taken |= dict.fromkeys(_variables(_operands(eqn, split.get(id(eqn)), first=False)))
    return _Halves(first, second, [var for var in taken if var in made], split)


def _split_scan(eqn: Any, is_needed: list[bool]) -> _SplitScan | None:
    """Split a scan by the results that are needed first; None if its first half needs all that it carries."""
    body = eqn.params["jaxpr"].jaxpr
    num_consts, num_carried = scan_operands(eqn.params)
    carried = body.invars[num_consts:][:num_carried]
    is_first = is_needed[:num_carried]
    while True:  # what one turn needs of the carry, the turn before must have carried
        outs = [var for var, is_one in zip(body.outvars, [*is_first, *is_needed[num_carried:]], strict=True) if is_one]
        halves = _halves_of_body(body, outs)
        read = set(_variables(outs)) | {var for one in halves.first for var in _variables(one.invars)}
        now = [one or var in read for one, var in zip(is_first, carried, strict=True)]
        if now == is_first:
            break
        is_first = now
    is_output = is_needed[num_carried:]
    if all(is_first) and all(is_output):
        return None
    first_carry = {var for var, one in zip(carried, is_first, strict=True) if one}
    taken = {var for one in halves.second for var in _variables(one.invars)} | set(
        _variables(_others(body, is_first, is_output))
    )
    crossing = [*halves.crossing, *(var for var in carried if var in first_carry and var in taken)]
    crossing = [var for var in crossing if var in taken]
    return _SplitScan(is_first, is_output, _Halves(halves.first, halves.second, crossing))


def _halves_of_body(body: Any, outs: Sequence[Any]) -> _Halves:
    """Split the operations of one turn, each in one half."""
    needed, first = set(_variables(outs)), []
    for eqn in reversed(body.eqns):
        if any(var in needed for var in eqn.outvars):
            first.insert(0, eqn)
            needed.update(_variables(eqn.invars))
    in_first = {id(eqn) for eqn in first}
    made = [var for eqn in first for var in eqn.outvars]
    return _Halves(first, [eqn for eqn in body.eqns if id(eqn) not in in_first], made)


def _others(body: Any, is_first: list[bool], is_output: list[bool]) -> list[Any]:
    return [var for var, one in zip(body.outvars, [*is_first, *is_output], strict=True) if not one]


def _operands(eqn: Any, halved: _SplitScan | None, *, first: bool) -> list[Any]:
    """Return the operands of an operation, or of one half of a scan."""
    if halved is None:
        return eqn.invars
    num_consts, num_carried = scan_operands(eqn.params)
    carried = eqn.invars[num_consts:][:num_carried]
    own = [atom for atom, one in zip(carried, halved.is_first_carry, strict=True) if one == first]
    return [*eqn.invars[:num_consts], *own, *eqn.invars[num_consts + num_carried :]]


def _results(eqn: Any, halved: _SplitScan | None, *, first: bool) -> list[Any]:
    """Return the results of an operation, or of one half of a scan."""
    if halved is None:
        return eqn.outvars
    belongs = [*halved.is_first_carry, *halved.is_first_output]
    return [var for var, one in zip(eqn.outvars, belongs, strict=True) if one == first]


def _variables(atoms: Sequence[Any]) -> list[Any]:
    return [atom for atom in atoms if not isinstance(atom, Literal)]


def _run_first(halves: _Halves, known: dict[Any, Any], results: Any) -> tuple[list[Any], list[Any]]:
    """Run the first half; return its results, and what the second takes: crossing values, then what its scans stack."""
    stacked: list[Any] = []
    for eqn in halves.first:
        read = [_read(known, atom) for atom in eqn.invars]
        halved = halves.split.get(id(eqn))
        if halved is None:
            known.update(zip(eqn.outvars, _bind(eqn, read), strict=True))
            continue
        made, crossing = _scan_first(eqn, halved, read)
        known.update(zip(_results(eqn, halved, first=True), made, strict=True))
        stacked += crossing
    return [_read(known, atom) for atom in results], [*(known[var] for var in halves.crossing), *stacked]


def _run_second(halves: _Halves, known: dict[Any, Any], crossing: Sequence[Any], results: Any) -> list[Any]:
    known |= dict(zip(halves.crossing, crossing, strict=False))
    stacked = [*crossing[len(halves.crossing) :]]
    # In the order of the first half, in which its scans have handed on their values.
    of_scans = {}
    for eqn in halves.first:
        if (halved := halves.split.get(id(eqn))) is not None:
            num = len(halved.body.crossing)
            of_scans[id(eqn)], stacked = stacked[:num], stacked[num:]
    for eqn in halves.second:
        halved = halves.split.get(id(eqn))
        if halved is None:
            known.update(zip(eqn.outvars, _bind(eqn, [_read(known, atom) for atom in eqn.invars]), strict=True))
            continue
        made = _scan_second(eqn, halved, lambda atom: _read(known, atom), of_scans[id(eqn)])
        known.update(zip(_results(eqn, halved, first=False), made, strict=True))
    return [_read(known, atom) for atom in results]


def _scan_first(eqn: Any, halved: _SplitScan, values: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Run the first half of a scan; return its results and what each turn hands on, stacked."""
    body, (num_consts, num_carried) = eqn.params["jaxpr"], scan_operands(eqn.params)
    carried_vars = body.jaxpr.invars[num_consts:][:num_carried]
    own_vars = [var for var, one in zip(carried_vars, halved.is_first_carry, strict=True) if one]
    start = [x for x, one in zip(values[num_consts:][:num_carried], halved.is_first_carry, strict=True) if one]
    belongs = [*halved.is_first_carry, *halved.is_first_output]
    outs = [var for var, one in zip(body.jaxpr.outvars, belongs, strict=True) if one]
    fixed, slices_vars = body.jaxpr.invars[:num_consts], body.jaxpr.invars[num_consts + num_carried :]

    def turn(carried: list[Any], slices: list[Any]) -> tuple[list[Any], tuple[list[Any], list[Any]]]:
        invars = [*body.jaxpr.constvars, *fixed, *own_vars, *slices_vars]
        given = [*body.consts, *values[:num_consts], *carried, *slices]
        results = replay(Operations(halved.body.first, invars, [*outs, *halved.body.crossing]), given)
        num = len(own_vars)
        return results[:num], (results[num : len(outs)], results[len(outs) :])

    carried, (outputs, crossing) = jax.lax.scan(turn, start, [*values[num_consts + num_carried :]], **_how(eqn))
    return [*carried, *outputs], crossing


def _scan_second(eqn: Any, halved: _SplitScan, read: Any, crossing: Sequence[Any]) -> list[Any]:
    """Run the second half of a scan, turn by turn in the same order."""
    body, (num_consts, num_carried) = eqn.params["jaxpr"], scan_operands(eqn.params)
    is_own = [not one for one in halved.is_first_carry]
    own_vars = [var for var, one in zip(body.jaxpr.invars[num_consts:][:num_carried], is_own, strict=True) if one]
    start = [read(atom) for atom, one in zip(eqn.invars[num_consts:][:num_carried], is_own, strict=True) if one]
    outs = _others(body.jaxpr, halved.is_first_carry, halved.is_first_output)
    consts = [read(atom) for atom in eqn.invars[:num_consts]]
    fixed, slices_vars = body.jaxpr.invars[:num_consts], body.jaxpr.invars[num_consts + num_carried :]

    def turn(carried: list[Any], given: tuple[list[Any], list[Any]]) -> tuple[list[Any], list[Any]]:
        slices, handed = given
        invars = [*body.jaxpr.constvars, *fixed, *own_vars, *slices_vars, *halved.body.crossing]
        values = [*body.consts, *consts, *carried, *slices, *handed]
        results = replay(Operations(halved.body.second, invars, outs), values)
        return results[: len(own_vars)], results[len(own_vars) :]

    slices = [read(atom) for atom in eqn.invars[num_consts + num_carried :]]
    carried, outputs = jax.lax.scan(turn, start, (slices, list(crossing)), **_how(eqn))
    return [*carried, *outputs]


def _how(eqn: Any) -> dict[str, Any]:
    return {name: eqn.params[name] for name in ("length", "reverse", "unroll")}


def _bind(eqn: Any, values: Sequence[Any]) -> list[Any]:
    given = {atom: value for atom, value in zip(eqn.invars, values, strict=True) if not isinstance(atom, Literal)}
    return replay(Operations([eqn], [*given], eqn.outvars), [*given.values()])


def _read(known: dict[Any, Any], atom: Any) -> Any:
    return atom.val if isinstance(atom, Literal) else known[atom]
