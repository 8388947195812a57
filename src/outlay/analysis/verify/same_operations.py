"""Tell whether two traced steps are the same operations on the same values, and so mean the same on any devices."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal

from outlay.core.jax_tracing import operations

_OF_PLACE = {"sharding_constraint", "reshard"}
# What these compute depends on the devices, or on more than the trace shows.
_DEPEND_ON_DEVICES = {
    *("shard_map", "axis_index", "custom_partitioning", "pure_callback", "io_callback", "pallas_call", "device_put"),
    *("psum", "pmax", "pmin", "ppermute", "all_gather", "all_to_all", "reduce_scatter", "psum_scatter", "ffi_call"),
}
# How to differentiate what was differentiated already.
_OF_DERIVATIVES = {"jvp_jaxpr_fun", "jvp_jaxpr_thunk", "fwd_jaxpr_thunk", "bwd", "num_consts", "symbolic_zeros"}
# Where values live, and how an inner function is compiled.
_OF_COMPILING = {"in_shardings", "out_shardings", "in_layouts", "out_layouts", "donated_invars", "ctx_mesh", "name"} | {
    *("keep_unused", "inline", "compiler_options_kvs", "resource_env", "sharding", "out_sharding", "prevent_cse"),
}


def are_same_operations(one: ClosedJaxpr, other: ClosedJaxpr) -> bool:
    """Return whether two traces compute the same, operation by operation, and nothing in them knows of devices.

    >>> double, add = (jax.make_jaxpr(f)(1.0) for f in (lambda x: 2 * x, lambda x: x + x))
    >>> are_same_operations(double, jax.make_jaxpr(lambda y: 2 * y)(3.0)), are_same_operations(double, add)
    (True, False)
    """
    if any(equation.primitive.name in _DEPEND_ON_DEVICES for equation in operations(one)):
        return False
    return _same(one.jaxpr, other.jaxpr, one.consts, other.consts)


def _same(one: Any, other: Any, consts: Sequence[Any], other_consts: Sequence[Any]) -> bool:
    """Return whether two open traces are the same, given the arrays that they captured."""
    numbered: tuple[dict[Any, Any], dict[Any, Any]] = ({}, {})
    for known, jaxpr in zip(numbered, (one, other), strict=True):
        known.update({var: number for number, var in enumerate([*jaxpr.constvars, *jaxpr.invars])})
    if len(one.invars) != len(other.invars) or not _equal(list(consts), list(other_consts)):
        return False
    streams = [_numbered(jaxpr, known) for jaxpr, known in zip((one, other), numbered, strict=True)]
    for first, second in zip(*streams, strict=False):
        if (first is None) != (second is None):
            return False
        if first is None or second is None:
            break
        (name, operands, results, params), (its_name, its_operands, its_results, its_params) = first, second
        if name != its_name or not _equal(operands, its_operands) or results != its_results:
            return False
        if not _same_params(params, its_params):
            return False
    ends = ([_read(var, known) for var in jaxpr.outvars] for jaxpr, known in zip((one, other), numbered, strict=True))
    return _equal(*ends)


def _numbered(jaxpr: Any, known: dict[Any, Any]) -> Iterator[tuple[Any, ...] | None]:
    """Yield operations with values by number, constraints on where they live left out, and None at the end."""
    numbers = itertools.count(len(known))
    for equation in jaxpr.eqns:
        operands = [_read(atom, known) for atom in equation.invars]
        if equation.primitive.name in _OF_PLACE:
            known[equation.outvars[0]] = operands[0]
            continue
        for var in equation.outvars:
            known[var] = next(numbers)
        types = [_type_of(var.aval) for var in equation.outvars]
        yield equation.primitive.name, operands, types, equation.params
    yield None


def _type_of(aval: Any) -> tuple[Any, Any] | None:
    return (aval.shape, aval.dtype) if hasattr(aval, "dtype") else None


def _read(atom: Any, known: Mapping[Any, Any]) -> Any:
    return (np.asarray(atom.val), _type_of(atom.aval)) if isinstance(atom, Literal) else known[atom]


def _same_params(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    ignored = _OF_DERIVATIVES | _OF_COMPILING
    names = [name for name in one if name not in ignored]
    return names == [name for name in other if name not in ignored] and all(
        _equal(one[name], other[name]) for name in names
    )


def _equal(one: Any, other: Any) -> bool:
    """Return whether two parameters are equal; if that cannot be told, they are not."""
    if isinstance(one, ClosedJaxpr):
        return isinstance(other, ClosedJaxpr) and _same(one.jaxpr, other.jaxpr, one.consts, other.consts)
    if hasattr(one, "eqns"):
        return hasattr(other, "eqns") and _same(one, other, (), ())
    if isinstance(one, tuple | list):
        return type(one) is type(other) and len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, np.ndarray | jax.Array):
        if jax.dtypes.issubdtype(one.dtype, jax.dtypes.prng_key):
            return one is other
        return isinstance(other, np.ndarray | jax.Array) and (one is other or _equal_arrays(one, other))
    try:
        return bool(one == other) or (one != one and other != other)  # NaN fills what is out of bounds
    except Exception:  # whatever compares in another way
        return False


def _equal_arrays(one: Any, other: Any) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return np.asarray(one).tobytes() == np.asarray(other).tobytes()
