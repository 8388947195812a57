"""Find the products of a traced function that read certain parameters, and run it with others in their place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Literal, jaxprs_in_params

from outlay.core.jax_source import MARK
from outlay.core.jax_tracing import CALLS, CHECKPOINTS, COND, SCAN, operations, rerun, rerun_scan, run_jaxpr
from outlay.core.primitives import EACH_ENTRY, KEEPS
from outlay.program.fp8.fp8_scaling import LARGEST
from outlay.program.value_facts import NAME, FactRules, facts_of, split_scan

_PRODUCT = "dot_general"
_ENTERED = (SCAN, COND, *CALLS, *CHECKPOINTS)
"""Operations that hold programs in which a product can be replaced."""
_PIECES = {"broadcast_in_dim", "concatenate", "dynamic_slice", "slice", "split", "stack", "unstack"}
_HANDED_ON = KEEPS | _PIECES | {MARK}
"""Operations whose results are the parameters themselves, cast, moved, or pieces of them."""
_CAST, _CONSTRAINT = "convert_element_type", "sharding_constraint"
_UNMOVED = {_CAST, MARK, NAME, "copy", _CONSTRAINT}
"""Operations that leave each entry at its place, perhaps cast."""


@dataclass(frozen=True)
class Origin:
    """The parameters that a value is made of.

    Attributes:
        paths: their paths.
        rule: the number of the rule that they are under.
        slice_of: of a slice of a stack that a loop reads, if nothing but cast, the argument of the loop's body.
        casts: the dtypes that the slice was cast to, one after the other.
    """

    paths: frozenset[str]
    rule: int
    slice_of: Any = None
    casts: tuple[Any, ...] = ()

    @property
    def key(self) -> tuple[Any, tuple[Any, ...]]:
        """Identify the slice and its dtypes, to look up what was rounded before the loop."""
        return self.slice_of, self.casts


Origins = Sequence["Origin | None"]
"""Of each argument of a program, or of its constants and arguments; None for what comes from no such parameter."""


class Surroundings(NamedTuple):
    """What is around a product.

    Attributes:
        rounded: what was made of each operand before the loop, or None.
        constraints: the operations that say where its operands and its result lie, or None for each.
        is_before_tanh: whether entries of its result go into a `tanh`, one by one.
        is_recomputed: whether the backward pass computes it again, right before its gradients.
    """

    rounded: Sequence[Any]
    constraints: Sequence[Any]
    is_before_tanh: bool
    is_recomputed: bool


class Caller(NamedTuple):
    """What the caller of a program does with its arguments and results; empty for a program that is not called.

    Attributes:
        of_arguments: the constraint that each argument comes from, or None.
        of_results: the constraint that takes each result next, or None.
        are_before_tanh: whether entries of each result go into a `tanh`.
        is_recomputed: whether the backward pass runs the program again as a whole.
    """

    of_arguments: Sequence[Any] = ()
    of_results: Sequence[Any] = ()
    are_before_tanh: Sequence[bool] = ()
    is_recomputed: bool = False


_NONE = Caller()
Multiply = Callable[[Any, list[Any], Origins, dict[Any, Any], Surroundings], list[Any]]
"""`multiply(eqn, values, origins, shared, surroundings)` returns the results of a product.

`shared` lives as long as its operands.
"""
Rounding = Callable[[Any, Origin], Any]
"""`round_stack(stack, of_slice)` returns arrays of which each has an entry for each slice; None for nothing."""


def run_with_products(
    jaxpr: Any,
    values: Sequence[Any],
    origins: Origins,
    multiply: Multiply,
    round_stack: Rounding | None = None,
    rounded: Mapping[Any, Any] = MappingProxyType({}),
    caller: Caller = _NONE,
) -> list[Any]:
    """Run a traced program with other operations for the products of parameters, wherever they are.

    Args:
        jaxpr: the program.
        values: its arguments.
        origins: the parameters that these are made of, or that its constants and these are made of.
        multiply: what runs instead of a product.
        round_stack: what is computed before a loop of the stacks whose slices it multiplies; None for nothing.
        rounded: what was, by the slice.
        caller: what its caller does with its arguments and results.
    """
    known, shared = ORIGINS.known(jaxpr, origins), {}
    before, behind = _constraints(getattr(jaxpr, "jaxpr", jaxpr), caller)
    before_tanh = _before_tanh(getattr(jaxpr, "jaxpr", jaxpr), caller)

    def evaluate(eqn: Any, values: list[Any], bind: Callable[..., list[Any]]) -> list[Any]:
        of = facts_of(known, eqn.invars)
        if _is_product(eqn, of):
            made = [None if one is None else rounded.get(one.key) for one in of]
            constraints = [*facts_of(before, eqn.invars), behind.get(eqn.outvars[0])]
            is_before_tanh = eqn.outvars[0] in before_tanh
            around = Surroundings(made, constraints, is_before_tanh, caller.is_recomputed)
            return multiply(eqn, values, of, shared, around)
        inside = ORIGINS.inside(eqn, of) if eqn.primitive.name in _ENTERED and any(of) else []
        if not any(next(products_in(*one), None) for one in inside):
            return bind(*values)

        def run(inner: Any, values: Sequence[Any], more: Mapping[Any, Any] = rounded) -> list[Any]:
            within = next(origins for one, origins in inside if one is inner or one is getattr(inner, "jaxpr", None))
            if eqn.primitive.name in (SCAN, COND):
                return run_with_products(inner, values, within, multiply, round_stack, more)
            own = Caller(
                facts_of(before, eqn.invars),
                facts_of(behind, eqn.outvars),
                [one in before_tanh for one in eqn.outvars],
                caller.is_recomputed or eqn.primitive.name in CHECKPOINTS,
            )
            return run_with_products(inner, values, within, multiply, round_stack, more, own)

        if eqn.primitive.name == SCAN and round_stack is not None:
            body, within = inside[0]
            stacks = _before_loop(body, within, values, round_stack)
            leaves, tree = jax.tree.flatten([*stacks.values()])

            def turn(own: list[Any]) -> list[Any]:
                slices = jax.tree.unflatten(tree, own[len(values) :])
                return run(body, own[: len(values)], {**rounded, **dict(zip(stacks, slices, strict=True))})

            return rerun_scan(eqn.params, [*values, *leaves], turn)
        if eqn.primitive.name in CHECKPOINTS:
            eqn = eqn.replace(params={**eqn.params, "policy": _keeping_scales(eqn.params["policy"])})
        return rerun(eqn, values, run)

    return run_jaxpr(jaxpr, values, evaluate)


def _constraints(jaxpr: Any, caller: Caller) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Return for each value the constraint that it comes from, and the constraint that takes it next.

    Between them it may be cast.
    """
    arguments = zip(jaxpr.invars, caller.of_arguments, strict=False)
    results = zip(jaxpr.outvars, caller.of_results, strict=False)
    before = {variable: one for variable, one in arguments if one is not None}
    behind = {atom: one for atom, one in results if one is not None and not isinstance(atom, Literal)}
    unmoved = [eqn for eqn in jaxpr.eqns if eqn.primitive.name in _UNMOVED]
    for eqn in unmoved:
        last = eqn if eqn.primitive.name == _CONSTRAINT else facts_of(before, eqn.invars)[0]
        before |= {} if last is None else {eqn.outvars[0]: last}
    for eqn in reversed(unmoved):
        following = eqn if eqn.primitive.name == _CONSTRAINT else behind.get(eqn.outvars[0])
        behind |= {} if following is None or isinstance(eqn.invars[0], Literal) else {eqn.invars[0]: following}
    return before, behind


def _before_tanh(jaxpr: Any, caller: Caller) -> set[Any]:
    """Return the values whose entries go into a `tanh`, one by one, or into a call that has one."""
    results = zip(jaxpr.outvars, caller.are_before_tanh, strict=False)
    values = {atom for atom, goes_in in results if goes_in and not isinstance(atom, Literal)}
    for eqn in reversed(jaxpr.eqns):
        goes_on = eqn.primitive.name in EACH_ENTRY and not values.isdisjoint(eqn.outvars)
        if goes_on or eqn.primitive.name == "tanh" or any(map(_has_tanh, jaxprs_in_params(eqn.params))):
            values.update(atom for atom in eqn.invars if not isinstance(atom, Literal))
    return values


def _has_tanh(jaxpr: Any) -> bool:
    return next(operations(jaxpr, "tanh"), None) is not None


def _before_loop(
    body: Any, origins: Origins, values: Sequence[Any], round_stack: Rounding
) -> dict[tuple[Any, tuple[Any, ...]], Any]:
    """Return what is computed of a loop's stacks, for the slices that are multiplied as they are."""
    stacks = dict(zip(getattr(body, "jaxpr", body).invars, values, strict=True))
    slices = {one.key: one for _, of in products_in(body, origins) for one in of if one and one.slice_of in stacks}
    before = {key: round_stack(stacks[one.slice_of], one) for key, one in slices.items()}
    return {key: made for key, made in before.items() if made is not None}


def _keeping_scales(policy: Callable[..., Any] | None) -> Callable[..., Any]:
    """Return a policy like another (None: keep nothing), except that a number is kept that takes a pass to find."""

    def keeping(primitive: Any, *types: Any, **params: Any) -> Any:
        is_scale = primitive.name == NAME and params["name"] == LARGEST
        return is_scale or (policy is not None and policy(primitive, *types, **params))

    return keeping


def products_in(jaxpr: Any, origins: Origins) -> Iterator[tuple[Any, Origins]]:
    """Yield the products of parameters that `run_with_products` replaces, each with what its operands are made of."""
    for eqn, of in ORIGINS.operations(jaxpr, origins):
        if _is_product(eqn, of):
            yield eqn, of
        elif eqn.primitive.name in _ENTERED and any(of):
            for inner, within in ORIGINS.inside(eqn, of):
                yield from products_in(inner, within)


_OTHERS = {
    _PRODUCT: "a product of other dtypes",
    "conv_general_dilated": "a convolution",
    "ragged_dot": "a ragged product",
    "ragged_dot_general": "a ragged product",
}


def out_of_reach(jaxpr: Any, origins: Origins) -> Iterator[tuple[Any, str, frozenset[str]]]:
    """Yield operations that multiply parameters out of reach, such as convolutions and functions with derivatives.

    Each comes with what it is, in words, and with the parameters that it takes.
    """
    for eqn, of in ORIGINS.operations(jaxpr, origins):
        if not any(of) or _is_product(eqn, of):
            continue
        if eqn.primitive.name in _ENTERED:
            for inner, within in ORIGINS.inside(eqn, of):
                yield from out_of_reach(inner, within)
        elif _multiplies(eqn):
            what = _OTHERS.get(eqn.primitive.name, "a function of its own")
            yield eqn, what, frozenset().union(*(one.paths for one in of if one is not None))


def _multiplies(eqn: Any) -> bool:
    return eqn.primitive.name in _OTHERS or any(
        one.primitive.name in _OTHERS for inner in jaxprs_in_params(eqn.params) for one in operations(inner)
    )


def _is_product(eqn: Any, of: Origins) -> bool:
    """Return whether an operation is a product of parameters that 8 bits can stand for."""
    if eqn.primitive.name != _PRODUCT or not any(of):
        return False
    types = [atom.aval for atom in eqn.invars]
    are_floats = all(jnp.issubdtype(one.dtype, jnp.floating) and 1 < one.dtype.itemsize < 8 for one in types)
    return are_floats and all(one.size for one in types)


def _of_results(eqn: Any, of: Origins) -> Origins:
    name = eqn.primitive.name
    if name not in _HANDED_ON or (name == "concatenate" and not all(of)):
        return [None for _ in eqn.outvars]
    own = [one for one in of if one is not None]
    if name in _UNMOVED:
        casts = (eqn.params["new_dtype"],) if name == _CAST else ()
        return [replace(own[0], casts=(*own[0].casts, *casts))]
    merged = Origin(frozenset().union(*(one.paths for one in own)), min(one.rule for one in own))
    return [merged for _ in eqn.outvars]


def _in_scan(eqn: Any, of: Origins) -> Origins:
    of_all, carried, scanned = split_scan(eqn, of)
    arguments = eqn.params["jaxpr"].jaxpr.invars[len(of_all) + len(carried) :]
    slices = [
        None if one is None else replace(one, slice_of=argument, casts=())
        for one, argument in zip(scanned, arguments, strict=True)
    ]
    # What a turn hands to the next one need not be made of what the first had.
    return [*of_all, *[None for _ in carried], *slices]


ORIGINS = FactRules(_of_results, _in_scan, lambda name: name in (*CALLS, *CHECKPOINTS))
"""How origins go through a program."""
