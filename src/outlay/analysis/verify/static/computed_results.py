"""Which results of a traced step are certainly computed, not an argument handed through.

A compiler may find that what is added is always zero. So only what no compiler can leave out counts: operations with
constants that may be zeros, and choices by constants, do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outlay.core.primitives import KINDS

_HANDS_ON = KINDS["hands on"] | {"optimization_barrier"}
_MAY_VANISH = frozenset(("select_n", "and", "or", "max", "min", "clamp", "cond", "dynamic_update_slice", "mul", "div"))
_SPREADS = frozenset(("broadcast_in_dim", "convert_element_type", "copy", "neg"))
_SUMS = frozenset(("add", "sub", "add_any"))
_CALLS = ("jaxpr", "call_jaxpr", "fun_jaxpr")


def computed_results(traced: Any) -> list[bool]:
    """Return for each result of a traced step whether it is certainly the sum of two values that vary.

    Args:
        traced: the step as a closed jaxpr.

    Examples:
        >>> import jax
        >>> computed_results(jax.make_jaxpr(lambda p, g, q: (p - 0.1 * g, q, p + 0.0))(1.0, 2.0, 3.0))
        [True, False, False]
    """
    search = _Search(traced.jaxpr, [True] * len(traced.jaxpr.invars))
    return [search.is_computed(result) for result in traced.jaxpr.outvars]


class _Search:
    """Answers about the values of a jaxpr.

    Args:
        jaxpr: the jaxpr.
        varying: which of its arguments are no constants.
    """

    def __init__(self, jaxpr: Any, varying: Sequence[bool]) -> None:
        self._made_by = {id(out): (equation, at) for equation in jaxpr.eqns for at, out in enumerate(equation.outvars)}
        self._inner: dict[int, _Search] = {}
        self._varying = {id(argument) for argument, varies in zip(jaxpr.invars, varying, strict=True) if varies}
        for equation in jaxpr.eqns:
            self._varying.update(id(out) for out in self._varying_results(equation))

    def is_computed(self, value: Any) -> bool:
        """Return whether a value is the sum of two that vary with the arguments."""
        made = self._made_by.get(id(value))
        if made is None:
            return False
        equation, at = made
        if id(equation) in self._inner:
            return self._inner[id(equation)].is_computed(_inside(equation).outvars[at])
        if equation.primitive.name in _HANDS_ON:
            return self.is_computed(equation.invars[min(at, len(equation.invars) - 1)])
        if equation.primitive.name not in _SUMS:
            return False
        left, right = equation.invars
        return left is not right and id(left) in self._varying and id(right) in self._varying

    def _varying_results(self, equation: Any) -> list[Any]:
        """Return the results of an operation that certainly vary with the arguments."""
        name, operands = equation.primitive.name, equation.invars
        varying = [id(one) in self._varying for one in operands]
        inner = _inside(equation)
        if inner is not None and len(inner.invars) == len(operands):
            search = self._inner[id(equation)] = _Search(inner, varying)
            pairs = zip(equation.outvars, inner.outvars, strict=True)
            return [out for out, inside in pairs if id(inside) in search._varying]
        if name in _MAY_VANISH:
            keeps = name in ("mul", "div")
            pairs = zip(varying, operands, strict=True)
            if not all(varies or (keeps and self._is_nonzero(one)) for varies, one in pairs):
                return []
        return list(equation.outvars) if any(varying) else []

    def _is_nonzero(self, value: Any) -> bool:
        """Return whether a constant is a number that leaves a product or a quotient as varied as it was."""
        number = getattr(value, "val", None)
        if number is not None:
            return getattr(number, "ndim", 0) == 0 and bool(number != 0)
        made = self._made_by.get(id(value))
        return made is not None and made[0].primitive.name in _SPREADS and self._is_nonzero(made[0].invars[0])


def _inside(equation: Any) -> Any:
    """Return the jaxpr that an operation runs once with its operands; None for others."""
    if equation.primitive.name in ("scan", "while", "cond", "shard_map"):
        return None
    inner = next((equation.params[name] for name in _CALLS if equation.params.get(name) is not None), None)
    return getattr(inner, "jaxpr", inner)
