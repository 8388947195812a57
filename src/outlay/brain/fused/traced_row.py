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
    """The equations of a row as JAX traced them: of the neuron's number, its rows, where a spike arrived, its delays.

    Attributes:
        jaxpr: the equations; they give the rows after the step.
        consts: shape and dtype of the arrays that they close over.
        numbers: of these arrays; one that both kinds of rows close over has the same in both.
    """

    jaxpr: Any
    consts: tuple[jax.ShapeDtypeStruct, ...]
    numbers: tuple[int, ...]

    def views(self, arrays: list[Any]) -> list[View]:
        """The arrays that they close over, as the code calls them."""
        return [View.of(array, like.dtype, like.shape) for array, like in zip(arrays, self.consts, strict=True)]

    def rounded(self, dtype: Any) -> TracedRow:
        """Return equations of which each operation rounds, if the Brain's dtype is narrow (`brain.rounding`)."""

        def equations(consts: list[jax.Array], *inputs: jax.Array) -> list[jax.Array]:
            return jaxpr_as_fun(ClosedJaxpr(self.jaxpr, consts))(*inputs)

        inputs = [jax.ShapeDtypeStruct(variable.aval.shape, variable.aval.dtype) for variable in self.jaxpr.invars]
        return replace(self, jaxpr=jax.make_jaxpr(rounds_each(equations, dtype))(list(self.consts), *inputs).jaxpr)
