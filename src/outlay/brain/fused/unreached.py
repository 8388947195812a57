"""Read from a rule's own equations what a step does to the pairs that no spike reaches.

A pair is reached if a spike arrives or if its post neuron spikes. A pass may leave out the others if the equations do
not change a bit of their kernel, and if what the rule keeps of them changes by itself, so that it can be computed
later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from outlay.brain.fused.traced_row import TracedRow

Expression = tuple[Any, ...]
"""The name of an operation, its parameters, and the expressions that are its operands."""
NEURON, ARRIVED, DELAYS = (("input", name) for name in ("neuron", "arrived", "delays"))
KERNEL = ("row", 0)
LIMITS = ("max", "min")
ROUNDED = ("convert_element_type", "reduce_precision")


@dataclass(frozen=True)
class Unreached:
    """The guarantee that pairs that no spike reaches keep their kernel.

    Attributes:
        bounds: which of the arrays that the equations of a quiet row close over bound the kernel; while they stay the
            same, so does the kernel.
        goes_on: whether what the rule keeps of a pair changes meanwhile, as a function of itself and the kernel alone.
    """

    bounds: tuple[int, ...] = ()
    goes_on: bool = False


def unreached(quiet: TracedRow, spiking: TracedRow, rows: tuple[np.dtype, ...]) -> Unreached | None:
    """Return what a step does to pairs that no spike reaches; None if it may change any kernel.

    Args:
        quiet: the equations of a row whose neuron did not spike.
        spiking: the equations of a row whose neuron spiked.
        rows: dtypes of the kernel and of what the rule keeps.
    """
    kernel, *others = _expressions(quiet, rows)
    limits, root = _limits(kernel)
    # A kernel within its limits stays there: they are the same in all rows, and end in the same dtype. The limit 0 is
    # needed for itself too: -0 + 0 is 0.
    if _limits(_expressions(spiking, rows)[0])[0] != limits or ("max", ("known", 0.0)) not in limits:
        return None
    if _without_arrivals(root, rows) != KERNEL:
        return None
    alone = [_without_arrivals(other, rows) for other in others]
    if any(source[0] != "row" for other in alone for source in _sources(other)):
        return None
    of_limits = {source for _, limit in limits for source in _sources(limit)}
    bounds = tuple(k for k, number in enumerate(quiet.numbers) if ("const", number) in of_limits)
    return Unreached(bounds, any(other != ("row", 1 + k) for k, other in enumerate(alone)))


def _expressions(row: TracedRow, rows: tuple[np.dtype, ...]) -> list[Expression]:
    """Return the results of the equations of a row: the kernel, and what the rule keeps."""
    consts = [("const", number) for number in row.numbers]
    inputs = [NEURON, *(("row", k) for k in range(len(rows))), ARRIVED, DELAYS]
    return _traced(row.jaxpr, consts, inputs[: len(row.jaxpr.invars)])


def _traced(jaxpr: Any, consts: list[Expression], inputs: list[Expression]) -> list[Expression]:
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *inputs], strict=True))

    def of(atom: Any) -> Expression:
        return ("known", np.asarray(atom.val).item()) if hasattr(atom, "val") else values[atom]

    for equation in jaxpr.eqns:
        operands, params = [of(atom) for atom in equation.invars], equation.params
        inner = params.get("jaxpr")
        if equation.primitive.name in ("jit", "pjit") and not inner.consts:
            results = _traced(inner.jaxpr, [], operands)
        else:
            results = [
                (equation.primitive.name, (k, repr(params), str(var.aval.dtype)), *operands)
                for k, var in enumerate(equation.outvars)
            ]
        values |= zip(equation.outvars, results, strict=True)
    return [of(atom) for atom in jaxpr.outvars]


def _limits(kernel: Expression) -> tuple[list[tuple[str, Expression]], Expression]:
    """Split off the limits and the rounding at the end of an expression, which do not depend on the pair's state."""
    limits = []
    while True:
        if kernel[0] in ROUNDED:
            limits.append((kernel[0], ("known", kernel[1])))
            kernel = kernel[2]
            continue
        if kernel[0] not in LIMITS:
            return limits, kernel
        free = [operand for operand in kernel[2:] if not _is_limit(operand)]
        if len(free) != 1:
            return limits, kernel
        limits.append((kernel[0], next(operand for operand in kernel[2:] if operand is not free[0])))
        kernel = free[0]


def _is_limit(expression: Expression) -> bool:
    """Return whether an expression is the same number for a pair whatever happens to it."""
    return all(source[0] == "const" or source in (NEURON, DELAYS) for source in _sources(expression))


def _without_arrivals(expression: Expression, rows: tuple[np.dtype, ...]) -> Expression:
    """Simplify an expression for a pair at which no spike arrives."""
    if expression == ARRIVED:
        return ("known", False)
    if not _is_operation(expression):
        return expression
    name, about, *operands = expression
    operands = [_without_arrivals(operand, rows) for operand in operands]
    first = operands[0]
    if name == "select_n" and first[0] == "known":
        return operands[1 + int(first[1])]
    if first[0] == "known" and name in ("broadcast_in_dim", *ROUNDED):
        return first
    if first[0] == "row" and name in ROUNDED and _holds(about[2], rows[first[1]]):
        return first
    if name == "add" and ("known", 0.0) in operands:
        return next((operand for operand in operands if operand != ("known", 0.0)), first)
    return (name, about, *operands)


def _holds(dtype: str, narrow: np.dtype) -> bool:
    """Return whether a dtype holds all numbers of a narrower one."""
    return jnp.promote_types(dtype, narrow) == jnp.dtype(dtype)


def _sources(expression: Expression) -> set[Expression]:
    """Return the rows, arrays and inputs that an expression depends on."""
    if expression[0] == "known":
        return set()
    if not _is_operation(expression):
        return {expression}
    return {source for operand in expression[2:] for source in _sources(operand)}


def _is_operation(expression: Expression) -> bool:
    return expression[0] not in ("known", "const", "row", "input")
