"""Steps in which few pairs are reached by a spike: a pass leaves out the others, and nobody sees that it did.

Whether a step is sparse is seen in the step, by the share of pairs at which a spike arrives. What the rule keeps of
pairs that were left out is behind, and goes on when a spike reaches them, or when all are wanted.

What a step does to the pairs that no spike reaches is read from the rule's own equations. A pair is reached if a spike
arrives or if its post neuron spikes. A pass may leave out the others if the equations do not change a bit of their
kernel, and if what the rule keeps of them changes by itself, so that it can be computed later.
"""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from outlay.brain.fused.row_equations import TracedRow

DENSE, SPARSE, CATCH_UP = 0, 1, 2
"""What a pass does in a step: all pairs; those that are reached; all pairs, some of which are behind."""
MOST_REACHED = {False: 0.3, True: 0.18}
"""The share of vectors that spikes reach up to which a step is sparse: where nothing goes on, and where what the rule
keeps does. One that is reached now and then counts twice, since it takes longer than one that always is. With spikes
here and there these are 1 % and half a per cent of the pairs; with more a dense step is faster (measured)."""


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


@dataclass(frozen=True)
class SparseSteps:
    """What goes through a loop besides the pairs.

    Attributes:
        unreached: what a step does to pairs that no spike reaches.
        num_vectors: how many vectors of pairs a row has, each of which is left out by itself.
    """

    unreached: Unreached
    num_vectors: int

    def begin(self, bounds: list[jax.ShapeDtypeStruct]) -> Any:
        """Return it before the first step.

        Args:
            bounds: shape and dtype of the arrays that bound the kernel.
        """
        return {
            "numbers": jnp.zeros(4, jnp.uint8),
            "bounds": [jnp.zeros(bound.shape, bound.dtype) for bound in bounds],
        }

    def vectors(self, units: int) -> list[jax.Array]:
        """Return the number of each vector's last step, before the first; nothing where vectors are never behind.

        Steps that leave out some are numbered, and begin again at 0.

        Args:
            units: the number of post neurons.
        """
        return [jnp.zeros((units, self.num_vectors), jnp.uint8)] if self.unreached.goes_on else []

    def bounds(self, consts: list[Any]) -> list[Any]:
        """Select what bounds the kernel, of the arrays that the equations close over, those of quiet rows first."""
        return [consts[k] for k in self.unreached.bounds]

    def few_arrive(self, words: jax.Array, num_bits: int) -> jax.Array:
        """Return whether spikes reach few vectors, in this step and in the last.

        Args:
            words: the spikes of each pre neuron that are on their way or arrive.
            num_bits: how many steps they are of, at each of which as many pairs look.
        """
        num_spikes = jax.lax.population_count(words).astype(jnp.int32)
        width = -(-words.size // self.num_vectors)
        of_vectors = jnp.pad(num_spikes, (0, width * self.num_vectors - words.size)).reshape(self.num_vectors, width)
        steps = jnp.minimum(jnp.sum(of_vectors, axis=1), num_bits)
        reached = jnp.sum(steps * (2 * num_bits - steps))
        return reached <= MOST_REACHED[self.unreached.goes_on] * self.num_vectors * num_bits**2

    def step(self, carried: Any, few: jax.Array, pending: jax.Array, bounds: list[jax.Array]) -> Any:
        """Return it after another step, with what the pass does in this step.

        Its numbers are in one array, since in a short step each operation costs more than what it computes: what the
        pass does, the number of the step, and whether some vectors are behind and kernels within their bounds after it.

        Args:
            carried: after the step before.
            few: whether spikes arrive at few pairs.
            pending: whether there was a step, whose change is still to be made.
            bounds: the arrays that bound the kernel.
        """
        _, last, behind, within = carried["numbers"]
        same = [jnp.array_equal(now, before) for now, before in zip(bounds, carried["bounds"], strict=True)]
        # Kernels that were given may be out of bounds until a step has changed all of them.
        is_within = functools.reduce(operator.and_, same, within != 0)
        otherwise = jnp.where(behind != 0, jnp.uint8(CATCH_UP), jnp.uint8(DENSE)) if self.unreached.goes_on else DENSE
        mode = jnp.where(few & (is_within | ~pending), jnp.uint8(SPARSE), otherwise)
        number = last + ((mode != DENSE) & pending).astype(jnp.uint8)
        is_behind = jnp.where(pending, (mode == SPARSE).astype(jnp.uint8), behind)
        numbers = jnp.stack([mode, number, is_behind, within | pending.astype(jnp.uint8)])
        return {"numbers": numbers, "bounds": bounds}


Expression = tuple[Any, ...]
"""The name of an operation, its parameters, and the expressions that are its operands."""
NEURON, ARRIVED, DELAYS = (("input", name) for name in ("neuron", "arrived", "delays"))
KERNEL = ("row", 0)
LIMITS = ("max", "min")
ROUNDED = ("convert_element_type", "reduce_precision")


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
    # But for -0, which no kernel is that the limit 0 was applied to.
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
