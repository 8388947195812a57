"""How much a traced step holds at one time, before any compiler: a rough figure, used to order what to compile."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator
from typing import Any

from jax.extend.core import Jaxpr, Var, jaxprs_in_params

from outlay.core.sizes import num_bytes


def live_bytes(jaxpr: Any, whole: Container[tuple[int, ...]] = ()) -> int:
    """The most bytes that computed values hold at one time, if operations run in the order of the trace.

    Without fusion and with nothing kept longer than its last use. What comes in is not counted.

    Args:
        jaxpr: of `jax.make_jaxpr(f)(...)`.
        whole: shapes that are not counted, such as those of parameters and their gradients.

    >>> live_bytes(jax.make_jaxpr(lambda x: jnp.sin(jnp.cos(x)) + x)(jnp.ones(8)))
    64
    """
    inner: Jaxpr = getattr(jaxpr, "jaxpr", jaxpr)  # of a closed jaxpr, the jaxpr
    last_use = _last_uses(inner)
    sizes: dict[Var, int] = {}
    held = most = 0
    for position, eqn in enumerate(inner.eqns):
        made = {var: _bytes(var.aval, whole) for var in eqn.outvars}
        within = max((live_bytes(each, whole) for each in jaxprs_in_params(eqn.params)), default=0)
        # What an inner program returns is made inside it.
        most = max(most, held + max(within, sum(made.values())))
        sizes |= made
        held += sum(made.values())
        used = {var for var in (*eqn.invars, *eqn.outvars) if isinstance(var, Var)}
        held -= sum(sizes.pop(var, 0) for var in used if last_use.get(var, position) == position)
    return most


def scan_lengths(jaxpr: Any) -> set[int]:
    """The lengths of all loops of known length: what stacked layers have as their first dim.

    >>> scan_lengths(jax.make_jaxpr(lambda x: jax.lax.scan(lambda c, y: (c + y, y), 0.0, x))(jnp.ones(8)))
    {8}
    """
    return {eqn.params["length"] for eqn in _all_eqns(jaxpr) if eqn.primitive.name == "scan"}


def product_dtype(jaxpr: Any) -> str | None:
    """The dtype that most FLOPs of matrix products are computed in; None without products.

    >>> product_dtype(jax.make_jaxpr(jnp.dot)(jnp.ones((4, 4), jnp.bfloat16), jnp.ones((4, 4), jnp.bfloat16)))
    'bfloat16'
    """
    by_dtype: dict[str, int] = {}
    for eqn in _all_eqns(jaxpr):
        if eqn.primitive.name == "dot_general":
            left = eqn.invars[0].aval
            by_dtype[str(left.dtype)] = by_dtype.get(str(left.dtype), 0) + math.prod(left.shape)
    return max(by_dtype, key=lambda dtype: by_dtype[dtype]) if by_dtype else None


def _all_eqns(jaxpr: Any) -> Iterator[Any]:
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        yield eqn
        for inner in jaxprs_in_params(eqn.params):
            yield from _all_eqns(inner)


def _last_uses(jaxpr: Jaxpr) -> dict[Var, int]:
    """The position of the last operation that reads each value; what is returned outlives them all."""
    last = {var: i for i, eqn in enumerate(jaxpr.eqns) for var in eqn.invars if isinstance(var, Var)}
    return last | {var: len(jaxpr.eqns) for var in jaxpr.outvars if isinstance(var, Var)}


def _bytes(aval: Any, whole: Container[tuple[int, ...]]) -> int:
    if not hasattr(aval, "shape") or tuple(aval.shape) in whole:
        return 0
    return num_bytes(aval.shape, aval.dtype)
