"""The equations of a row of pairs, as JAX traced them, walked one operation at a time.

A row is an array with one entry a pre neuron, of which a pass computes some at once. So an operation is done on numbers
and on pieces of rows, and what only looks at an array in another way is done when its entries are loaded.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from outlay.brain.rounding import rounds_each

N = TypeVar("N")
"""A number, or one for each pair of the piece."""


class NotCompiled(Exception):
    """Raised with the reason why a population has no pass."""


class NoPasses(NotCompiled):
    """Raised with the reason why none has: it is about what is compiled for, or what is installed."""


@dataclass(frozen=True)
class View:
    """Entries of an array in memory: a number, or a row.

    Attributes:
        array: what the code calls the array.
        dtype: its dtype.
        whole: its shape.
        starts: where the view begins along each dim of the array.
        sizes: how many entries it has along each dim of the array.
        dims: those of the array's dims that it has; along the others it has one entry.
    """

    array: Any
    dtype: np.dtype
    whole: tuple[int, ...]
    starts: tuple[Any, ...]
    sizes: tuple[int, ...]
    dims: tuple[int, ...]

    @classmethod
    def of(cls, array: Any, dtype: Any, whole: tuple[int, ...]) -> View:
        """View all of an array."""
        return cls(array, np.dtype(dtype), whole, (0,) * len(whole), whole, tuple(range(len(whole))))

    @classmethod
    def of_row(cls, array: Any, dtype: Any, size: int, neuron: Any) -> View:
        """View the row of a neuron in an array with an entry for each pair."""
        return cls(array, np.dtype(dtype), (1, size), (neuron, 0), (1, size), (1,))

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return tuple(self.sizes[dim] for dim in self.dims)


@dataclass(frozen=True)
class TracedRow:
    """The equations of a row as JAX traced them.

    Their arguments are the number of the neuron, its rows, where a spike arrived, and its delays if each pair has one.

    Attributes:
        jaxpr: the equations; their results are the rows after the step.
        consts: shapes and dtypes of the arrays that they close over.
        numbers: the numbers of these arrays; an array that both kinds of rows close over has the same number in both.
    """

    jaxpr: Any
    consts: tuple[jax.ShapeDtypeStruct, ...]
    numbers: tuple[int, ...]

    def views(self, arrays: list[Any]) -> list[View]:
        """Return views of the arrays that the equations close over, by their names in the code."""
        return [View.of(array, like.dtype, like.shape) for array, like in zip(arrays, self.consts, strict=True)]

    def rounded(self, dtype: Any) -> TracedRow:
        """Return equations in which each operation rounds, if the Brain's dtype is narrow (`brain.rounding`)."""

        def equations(consts: list[jax.Array], *inputs: jax.Array) -> list[jax.Array]:
            return jaxpr_as_fun(ClosedJaxpr(self.jaxpr, consts))(*inputs)

        inputs = [jax.ShapeDtypeStruct(variable.aval.shape, variable.aval.dtype) for variable in self.jaxpr.invars]
        return replace(self, jaxpr=jax.make_jaxpr(rounds_each(equations, dtype))(list(self.consts), *inputs).jaxpr)


class RowEquations(abc.ABC, Generic[N]):
    """Computes the equations of a piece of a row.

    Attributes:
        size: entries of a row.
    """

    size: int

    @abc.abstractmethod
    def constant(self, value: Any, dtype: Any) -> N:
        """Return a constant."""

    @abc.abstractmethod
    def vector(self, value: N) -> N:
        """Return the same number for each pair."""

    @abc.abstractmethod
    def load(self, view: View) -> N:
        """Load a number, or the numbers of the pairs of the piece."""

    @abc.abstractmethod
    def operate(self, name: str, operands: list[N], dtype: Any) -> N:
        """Compute an operation of JAX on numbers.

        Raises:
            NotCompiled: it is none of those that are known.
        """

    def equations(self, jaxpr: Any, consts: list[View], inputs: list[N | View]) -> list[N | View]:
        """Compute the results of a jaxpr.

        Args:
            jaxpr: the jaxpr.
            consts: the arrays that it closes over.
            inputs: its inputs.

        Raises:
            NotCompiled: an operation is none of those known here.
        """
        values: dict[Any, N | View] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *inputs], strict=True))

        def of(atom: Any) -> N | View:
            return self.constant(atom.val, atom.aval.dtype) if hasattr(atom, "val") else values[atom]

        for equation in jaxpr.eqns:
            operands, params = [of(atom) for atom in equation.invars], equation.params
            # A pass is not differentiated, so a function with a derivative of its own is a plain call.
            if equation.primitive.name in ("jit", "pjit", "custom_jvp_call"):
                closed = params["call_jaxpr" if "call_jaxpr" in params else "jaxpr"]
                # A pass takes the arrays that the whole row closes over, and no others.
                if closed.consts:
                    raise NotCompiled("a function with constants of its own")
                results = self.equations(closed.jaxpr, [], operands)
            else:
                results = [self._equation(equation.primitive.name, operands, params, equation.outvars[0].aval)]
            values |= zip(equation.outvars, results, strict=True)
        return [self.number(of(atom)) if atom.aval.shape in ((), (self.size,)) else of(atom) for atom in jaxpr.outvars]

    def number(self, operand: N | View) -> N:
        """Return what is computed with: a view is loaded."""
        if not isinstance(operand, View):
            return operand
        row = (len(operand.whole) - 1,)
        if operand.dims not in ((), row) or operand.shape not in ((), (self.size,)):
            raise NotCompiled(f"arithmetic with an array {operand.shape}")
        return self.load(operand)

    def _equation(self, name: str, operands: list[N | View], params: Any, result: Any) -> N | View:
        first = operands[0]
        if isinstance(first, View) and name in ("slice", "squeeze", "dynamic_slice"):
            return self._part(name, first, operands[1:], params)
        if result.shape not in ((), (self.size,)):
            raise NotCompiled(f"{name} of an array {result.shape}")
        numbers = [self.number(operand) for operand in operands]
        if name == "broadcast_in_dim":
            return self.vector(numbers[0])
        if name == "integer_pow" and params["y"] > 1:
            power = numbers[0]
            for _ in range(params["y"] - 1):
                power = self.operate("mul", [power, numbers[0]], result.dtype)
            return power
        return self.operate(name, numbers, result.dtype)

    def _part(self, name: str, view: View, where: list[N | View], params: Any) -> View:
        """Return a part of a view; nothing is loaded."""
        if name == "squeeze":
            return replace(view, dims=tuple(d for axis, d in enumerate(view.dims) if axis not in params["dimensions"]))
        if name == "slice":
            if params["strides"] is not None:
                raise NotCompiled("slice with strides")
            begin: Any = params["start_indices"]
            part = [stop - start for start, stop in zip(begin, params["limit_indices"], strict=True)]
        else:
            begin, part = [self.number(start) for start in where], params["slice_sizes"]
        starts, sizes = list(view.starts), list(view.sizes)
        for dim, start, size in zip(view.dims, begin, part, strict=True):
            if size == view.sizes[dim]:
                continue  # all of it, wherever it is said to begin
            if view.sizes[dim] != view.whole[dim]:
                # A view has one start along a dim.
                raise NotCompiled("a part of a part of an array")
            starts[dim], sizes[dim] = start, size
        return replace(view, starts=tuple(starts), sizes=tuple(sizes))
