"""The equations of a row of pairs, as JAX traced them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from outlay.brain.fused.row_equations import View
from outlay.brain.rounding import rounds_each


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
        """Return equations of which each operation rounds, if the Brain's dtype is narrow (`brain.rounding`)."""

        def equations(consts: list[jax.Array], *inputs: jax.Array) -> list[jax.Array]:
            return jaxpr_as_fun(ClosedJaxpr(self.jaxpr, consts))(*inputs)

        inputs = [jax.ShapeDtypeStruct(variable.aval.shape, variable.aval.dtype) for variable in self.jaxpr.invars]
        return replace(self, jaxpr=jax.make_jaxpr(rounds_each(equations, dtype))(list(self.consts), *inputs).jaxpr)
