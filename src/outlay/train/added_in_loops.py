"""Add what a function returns to sums so far, inside of the loops that compute it where that can be.

The gradient of a scan over layers is a stack that the backward loop fills, entry by entry. Added up as a whole, there
are two stacks at a time, and a third where the compiler lays them out in different ways. Here the sums so far are the
carry of that loop, and each turn adds its layer's gradient to its entry: the same additions, and one stack.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Var, jaxprs_in_params
from jax.sharding import AxisType

from outlay.core.jax_scan_sums import rerun_scan_onto
from outlay.core.jax_tracing import CALLS, SCAN, run_jaxpr, scan_operands
from outlay.core.primitives import KINDS

_PLACES, _CASTS = "sharding_constraint", "convert_element_type"
Numbered = Mapping[int, jax.Array]
"""Sums so far, by the number of the result that is added to them."""


def added(function: Callable[..., tuple[Any, Any]], so_far: Any, *args: Any) -> tuple[Any, Any]:
    """Return `function(*args)`, of two trees, with the first added to a tree of sums.

    Args:
        function: what computes them.
        so_far: the sums so far, of the shapes and dtypes of the first tree.
        *args: the arguments.

    Example:
        >>> def squares(xs):
        ...     return jax.lax.scan(lambda last, x: (x, x * x), 0.0, xs)[::-1]
        >>> sums, last = added(squares, jnp.array([10.0, 20.0]), jnp.array([1.0, 2.0]))
        >>> sums.tolist(), float(last)
        ([11.0, 24.0], 2.0)
    """
    if AxisType.Explicit in jax.sharding.get_abstract_mesh().axis_types:  # slices would need shardings of their own
        new, other = function(*args)
        return jax.tree.map(jnp.add, so_far, new), other
    jaxpr, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
    sums = dict(enumerate(jax.tree.leaves(so_far)))
    return jax.tree.unflatten(jax.tree.structure(shapes), _run(jaxpr, jax.tree.leaves(args), sums))


def _run(jaxpr: Any, values: list[Any], sums: Numbered) -> list[Any]:
    """Run a program, with some of its results added to sums."""
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    made_by = {variable: eqn for eqn in inner.eqns for variable in eqn.outvars}
    read = [*(atom for eqn in inner.eqns for atom in eqn.invars), *inner.outvars]
    num_reads = Counter(atom for atom in read if isinstance(atom, Var))
    makers = {number: maker for number in sums if (maker := _maker(inner.outvars[number], made_by, num_reads))}
    handed_on = {id(eqn) for maker in makers.values() for eqn in maker.handed_on}
    within: dict[int, dict[int, jax.Array]] = {}
    for number, maker in makers.items():
        within.setdefault(id(maker.eqn), {})[maker.number] = sums[number]

    def evaluate(eqn: Any, values: list[Any], bind: Callable[..., list[Any]]) -> list[Any]:
        if id(eqn) in handed_on and eqn.primitive.name != _PLACES:  # the sum has its type already
            return values
        if id(eqn) not in within:
            return bind(*values)
        if eqn.primitive.name == SCAN:
            return rerun_scan_onto(eqn.params, values, within[id(eqn)])
        return _run(next(iter(jaxprs_in_params(eqn.params))), values, within[id(eqn)])

    results = run_jaxpr(jaxpr, values, evaluate)
    left = {number: jnp.add(total, results[number]) for number, total in sums.items() if number not in makers}
    return [left.get(number, result) for number, result in enumerate(results)]


class _Maker(NamedTuple):
    """The loop or call that makes a result as a whole.

    Attributes:
        eqn: the operation.
        number: which of its results it is.
        handed_on: the operations between, which leave entries as they are.
    """

    eqn: Any
    number: int
    handed_on: tuple[Any, ...]


def _maker(variable: Any, made_by: Mapping[Var, Any], num_reads: Mapping[Var, int]) -> _Maker | None:
    """Return what makes a result that nothing else reads; None if that is no loop that stacks it up."""
    handed_on: list[Any] = []
    while isinstance(variable, Var) and num_reads[variable] == 1 and variable in made_by:
        eqn = made_by[variable]
        position = eqn.outvars.index(variable)
        is_stack = eqn.primitive.name == SCAN and position >= scan_operands(eqn.params)[1]
        if is_stack or eqn.primitive.name in CALLS:
            return _Maker(eqn, position, tuple(handed_on))
        if not _hands_on(eqn):
            return None
        handed_on.append(eqn)
        variable = eqn.invars[0]
    return None


def _hands_on(eqn: Any) -> bool:
    """Return whether an operation leaves all entries as they are, though it may make their dtype wider."""
    if len(eqn.invars) != 1 or len(eqn.outvars) != 1:
        return False
    before, after = eqn.invars[0].aval, eqn.outvars[0].aval
    is_wider = jnp.promote_types(before.dtype, after.dtype) == after.dtype
    return eqn.primitive.name in KINDS["hands on"] | {_CASTS} and before.shape == after.shape and is_wider
