"""The largest arrays of a traced program, for when no compiled one is there."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any

from jax.extend.core import jaxprs_in_params

from outlay.core.sizes import num_bytes
from outlay.report.explain.facts import ValueFacts

_NUM = 3


def largest_traced(jaxpr: Any) -> tuple[ValueFacts, ...]:
    """The largest arrays that a traced program makes, whole, as if on one device; each shape once.

    Args:
        jaxpr: of the program, closed or not.
    """
    found = {(tuple(aval.shape), str(aval.dtype)): name for name, aval in _made(getattr(jaxpr, "jaxpr", jaxpr))}
    values = [
        ValueFacts("", shape, dtype, num_bytes(shape, dtype), name, None) for (shape, dtype), name in found.items()
    ]
    return tuple(heapq.nlargest(_NUM, values, key=lambda value: value.num_bytes))


def _made(jaxpr: Any) -> Iterator[tuple[str, Any]]:
    for eqn in jaxpr.eqns:
        inner = [getattr(one, "jaxpr", one) for one in jaxprs_in_params(eqn.params)]
        for one in inner:
            yield from _made(one)
        for out in eqn.outvars:
            if hasattr(out.aval, "shape") and hasattr(out.aval, "dtype"):
                yield eqn.primitive.name, out.aval
