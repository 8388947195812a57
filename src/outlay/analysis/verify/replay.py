"""Evaluate a traced step again with every float in float64: what it means, apart from how its dtypes round.

Faults of parallel programs change what a step means; dtypes only change how it is rounded. In float64 rounding is so
small that the two can be told apart at any learning rate; and of two results in bfloat16 it tells which one is right.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal

from outlay.core.jax_tracing import operations, rerun_cond, rerun_scan, rerun_while
from outlay.core.primitives import SATURATE

_DTYPE_PARAMS = ("dtype", "new_dtype", "preferred_element_type", "output_dtype")
# These read, make or draw bits of numbers, so they keep the dtypes that they were traced with.
_IN_OWN_BITS = {"bitcast_convert_type", "nextafter", "random_gamma", "random_bits", "random_wrap", "random_unwrap"}
_WITHOUT_EFFECT = {"debug_callback", "debug_print"}
_OF_PLACE = {"sharding_constraint", "device_put"}
_SCATTERS = {
    "scatter": jax.lax.scatter,
    "scatter-add": jax.lax.scatter_add,
    "scatter-sub": jax.lax.scatter_sub,
    "scatter-mul": jax.lax.scatter_mul,
    "scatter-min": jax.lax.scatter_min,
    "scatter-max": jax.lax.scatter_max,
}

Override = Callable[[Any, list[Any], Any], Sequence[Any] | None]
"""`override(equation, operands, given)` returns an operation's results, or None to leave it; `given` is passed on."""


def wide(dtype: Any) -> Any:
    """Return the widest dtype of the same kind."""
    if jnp.issubdtype(dtype, jnp.floating):
        return np.dtype(np.float64)
    return np.dtype(np.complex128) if jnp.issubdtype(dtype, jnp.complexfloating) else dtype


def is_inexact(dtype: Any) -> bool:
    """Return whether a dtype rounds."""
    return jnp.issubdtype(dtype, jnp.inexact)


@dataclass
class Replay:
    """Evaluate traced steps, operation by operation; for float64, `jax.enable_x64` must be set around it.

    Attributes:
        precise: whether floats become float64; otherwise every operation runs as traced.
        placed: whether constraints on where values live are applied; without devices they are not.
        override: replaces operations, to try what another program would compute.
        given: passed to `override`.
        rounded: the operations that could only be evaluated in their own dtypes, so that they still round.
    """

    precise: bool = True
    placed: bool = True
    override: Override | None = None
    given: Any = None
    rounded: set[str] = field(default_factory=set)

    def __call__(self, closed: ClosedJaxpr, *args: Any) -> list[Any]:
        """Return the results of a traced function, floats in float64."""
        consts = [self._read(_host(const)) for const in closed.consts]
        return self._evaluate(closed.jaxpr, consts, args)

    def _evaluate(self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
        values: dict[Any, Any] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))

        def read(atom: Any) -> Any:
            if not isinstance(atom, Literal):
                return values[atom]
            aval: Any = atom.aval
            return self._read(np.asarray(atom.val, aval.dtype))

        for equation in jaxpr.eqns:
            operands = [read(atom) for atom in equation.invars]
            values.update(zip(equation.outvars, self._operation(equation, operands), strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _operation(self, equation: Any, operands: list[Any]) -> Sequence[Any]:
        name, params = equation.primitive.name, equation.params
        if self.override and (instead := self.override(equation, operands, self.given)) is not None:
            return instead
        if name in _WITHOUT_EFFECT:
            return []
        if name in _OF_PLACE and not self.placed:
            return operands
        if name in _STRUCTURED:
            return _STRUCTURED[name](self, params, operands)
        # What JAX may split off of it are its limits.
        if self.precise and params.get("name") == SATURATE and len(equation.outvars) == 1:
            shape = equation.outvars[0].aval.shape
            return [next(x for x, atom in zip(operands, equation.invars, strict=True) if atom.aval.shape == shape)]
        inner = params.get("call_jaxpr", params.get("jaxpr"))
        if inner is not None and len(_open(inner).invars) == len(operands):
            consts = [self._read(_host(const)) for const in getattr(inner, "consts", ())]
            return self._evaluate(_open(inner), consts, operands)
        if not self.precise:
            return _bind_as_traced(equation, operands)
        # All it does is to round.
        if name == "reduce_precision":
            return operands
        holds_functions = any(_is_function(value) for value in params.values())
        if holds_functions and name not in _SCATTERS:
            self.rounded.add(name)
        elif name not in _IN_OWN_BITS and any(is_inexact(v.aval.dtype) for v in [*equation.invars, *equation.outvars]):
            try:
                return _bind_widely(equation, operands)
            except (TypeError, ValueError, NotImplementedError):
                self.rounded.add(name)
        return [_widened(result) for result in _bind_as_traced(equation, operands)]

    def _read(self, value: Any) -> Any:
        return _widened(value) if self.precise else value

    def _run(self, closed: Any, values: Sequence[Any]) -> list[Any]:
        return self(closed, *values)

    def _scan(self, params: Mapping[str, Any], operands: list[Any]) -> Sequence[Any]:
        return rerun_scan(params, operands, lambda values: self(params["jaxpr"], *values))

    def _while(self, params: Mapping[str, Any], operands: list[Any]) -> Sequence[Any]:
        return rerun_while(params, operands, self._run)

    def _cond(self, params: Mapping[str, Any], operands: list[Any]) -> Sequence[Any]:
        return rerun_cond(params, operands, self._run)

    def _shard_map(self, params: Mapping[str, Any], operands: list[Any]) -> Sequence[Any]:
        axes = params["newly_manual_axes"] if "newly_manual_axes" in params else params["manual_axes"]
        body = functools.partial(self._evaluate, params["jaxpr"], ())
        mapped = jax.shard_map(
            lambda *args: tuple(body(args)),
            mesh=params["mesh"],
            in_specs=tuple(params["in_specs"]),
            out_specs=tuple(params["out_specs"]),
            axis_names=frozenset(axes),
            check_vma=params["check_vma"],
        )
        return mapped(*operands)

    def _linear_solve(self, params: Mapping[str, Any], operands: list[Any]) -> Sequence[Any]:
        """Call the step's own solver: the rest of the operation says how to differentiate it."""
        lengths, first = params["const_lengths"], 0
        for name in ("matvec", "vecmat", "solve"):
            consts, first = operands[first : first + getattr(lengths, name)], first + getattr(lengths, name)
        values = operands[first + lengths.transpose_solve :]
        return self(params["jaxprs"].solve, *consts, *values)

    def _reduce(self, params: Mapping[str, Any], operands: list[Any]) -> Sequence[Any]:
        half = len(operands) // 2

        def combine(a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(self(params["jaxpr"], *a, *b))

        starts = tuple(operands[half:])
        return list(jax.lax.reduce(tuple(operands[:half]), starts, combine, params["dimensions"]))


_STRUCTURED: dict[str, Callable[[Replay, Mapping[str, Any], list[Any]], Sequence[Any]]] = {
    "scan": Replay._scan,
    "while": Replay._while,
    "cond": Replay._cond,
    "shard_map": Replay._shard_map,
    "reduce": Replay._reduce,
    "custom_linear_solve": Replay._linear_solve,
}


DRAWN_BITS = tuple(np.uint32(eighth * 2**29 + 0x2B5A3) for eighth in (1, 6, 3, 4))
"""What replaces random bits: as uniform numbers, a little more than so many eighths."""


def draw_alike(equation: Any, operands: list[Any], bits: Any) -> Sequence[Any] | None:
    """Replace drawing: all random numbers, however many, come from these bits.

    So it can be seen whether devices compute the same apart from what they draw.
    """
    name = equation.primitive.name
    if name == "random_gamma":  # its mean, in the shape that it takes, which may broadcast
        return [operands[1]]
    if name not in ("random_bits", "rng_bit_generator"):
        return None
    *keys, drawn = _bind_as_traced(equation, operands)
    narrow = bits >> np.uint32(max(0, 32 - 8 * drawn.dtype.itemsize))
    # Derived from what was drawn, so that under `jax.shard_map` it varies over the same axes.
    return [*keys, drawn * 0 + jax.lax.convert_element_type(narrow, drawn.dtype)]


def draws_until(jaxpr: Any) -> bool:
    """Return whether a traced program draws until a number is accepted, which equal numbers might never be."""
    loops = operations(jaxpr, "while")
    return any(True for loop in loops for _ in operations(loop.params["body_jaxpr"], "random_bits"))


def _is_function(param: Any) -> bool:
    """Return whether a parameter is traced code, which has the dtypes that it was traced with."""
    return any(
        hasattr(one, "eqns") or hasattr(one, "jaxpr") for one in (param if isinstance(param, tuple) else (param,))
    )


def _open(jaxpr: Any) -> Any:
    return jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr


def _host(const: Any) -> Any:
    """Return a captured array on the host, wherever it lives; keys stay keys."""
    if not jax.dtypes.issubdtype(const.dtype, jax.dtypes.prng_key):
        return np.asarray(const)
    with jax.ensure_compile_time_eval():
        return jax.random.wrap_key_data(
            jnp.asarray(np.asarray(jax.random.key_data(const))), impl=jax.random.key_impl(const)
        )


def _widened(value: Any) -> Any:
    to = wide(value.dtype)
    if to == value.dtype:
        return value
    return value.astype(to) if isinstance(value, np.ndarray) else jax.lax.convert_element_type(value, to)


def _bind_widely(equation: Any, operands: list[Any]) -> Sequence[Any]:
    params = dict(equation.params)
    for name in _DTYPE_PARAMS:
        if params.get(name) is not None:
            params[name] = wide(np.dtype(params[name]))
    if equation.primitive.name == "dot_general":
        # By default GPUs and TPUs multiply floats in fewer digits.
        params["precision"] = (jax.lax.Precision.HIGHEST,) * 2
    if "update_jaxpr" in params:
        return [_scatter(equation.primitive.name, params, operands)]
    results = equation.primitive.bind(*operands, **params)
    results = list(results) if equation.primitive.multiple_results else [results]
    for result, traced in zip(results, equation.outvars, strict=True):
        # Some operations choose their own dtype; they are then evaluated as traced, and named in the report.
        if jnp.result_type(result) != wide(traced.aval.dtype):
            raise TypeError(f"{equation.primitive.name} gave {jnp.result_type(result)}")
    return results


def _scatter(name: str, params: Mapping[str, Any], operands: list[Any]) -> Any:
    """Call the public function: the operation itself holds the combining function, traced for its dtype."""
    if name == "scatter" and params["update_jaxpr"] is not None:
        raise NotImplementedError("a custom function combines the numbers")
    operand, indices, updates = operands
    return _SCATTERS[name](
        operand,
        indices,
        updates,
        params["dimension_numbers"],
        indices_are_sorted=params["indices_are_sorted"],
        unique_indices=params["unique_indices"],
        mode=params["mode"],
    )


def _bind_as_traced(equation: Any, operands: list[Any]) -> Sequence[Any]:
    narrow = [
        jax.lax.convert_element_type(value, atom.aval.dtype) if is_inexact(atom.aval.dtype) else value
        for value, atom in zip(operands, equation.invars, strict=True)
    ]
    results = equation.primitive.bind(*narrow, **equation.params)
    return list(results) if equation.primitive.multiple_results else [results]
