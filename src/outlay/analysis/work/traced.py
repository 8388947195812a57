"""The FLOPs of a traced step, whatever it will be compiled to: loops multiplied out, all devices added up."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jax.extend.core import Jaxpr, JaxprEqn, jaxprs_in_params

from outlay.analysis.work.primitives import flops_of


@dataclass(frozen=True)
class TracedWork:
    """What a traced program computes, on all devices together.

    Attributes:
        flops: floating-point operations.
        unknown: what was left out or counted once for want of knowledge, in words, each kind once.
    """

    flops: float
    unknown: tuple[str, ...]


def count_flops(jaxpr: Any) -> float:
    """The floating-point operations of a traced program, on all devices together.

    A multiplication and an addition are two, any other operation on an element one. A scan counts its length, a `cond`
    its dearest branch, a `shard_map` every device of its axes. Integer arithmetic and data movement count nothing; what
    nobody uses, and a compiler leaves out, counts all the same.

    Args:
        jaxpr: of `jax.make_jaxpr(f)(...)` or of `jax.jit(f).trace(...)`.

    >>> count_flops(jax.make_jaxpr(jnp.dot)(jnp.ones((4, 8)), jnp.ones((8, 2))))
    128.0
    """
    return traced_work(jaxpr).flops


def traced_work(jaxpr: Any) -> TracedWork:
    """As `count_flops`, with what could not be counted.

    >>> traced_work(jax.make_jaxpr(lambda x: jax.lax.while_loop(jnp.any, lambda x: x * 0.5, x))(jnp.ones(4)))
    TracedWork(flops=4.0, unknown=('while: how often it runs is known only when it runs; counted once',))
    """
    unknown: dict[str, None] = {}
    return TracedWork(_flops(jaxpr, unknown), tuple(unknown))


def _flops(jaxpr: Jaxpr | Any, unknown: dict[str, None]) -> float:
    inner = getattr(jaxpr, "jaxpr", jaxpr)  # of a closed jaxpr, the jaxpr
    return float(sum(_eqn_flops(eqn, unknown) for eqn in inner.eqns))


def _eqn_flops(eqn: JaxprEqn, unknown: dict[str, None]) -> float:
    name, params = eqn.primitive.name, eqn.params
    if name in _REPLACED:
        return _reported(eqn, unknown)
    if name == "cond":
        return max(_flops(branch, unknown) for branch in params["branches"])
    if name == "while":
        unknown["while: how often it runs is known only when it runs; counted once"] = None
    inner = list(_inner_jaxprs(eqn))
    if inner:
        return _repeats(eqn) * sum(_flops(jaxpr, unknown) for jaxpr in inner)
    flops = flops_of(eqn)
    if flops is None:
        unknown[f"{name}: FLOPs unknown; not counted"] = None
    return flops or 0.0


_REPLACED = ("pallas_call", "mpmd_map", "custom_partitioning")
"""What is not compiled from the jaxpr it carries, or runs it over a grid."""


def _reported(eqn: JaxprEqn, unknown: dict[str, None]) -> float:
    """What a kernel's author says that it costs."""
    cost = eqn.params.get("cost_estimate")
    if cost is not None:
        return float(cost.flops)
    unknown[f"{eqn.primitive.name}: FLOPs unknown without its author's cost_estimate; not counted"] = None
    return 0.0


def _repeats(eqn: JaxprEqn) -> int:
    if eqn.primitive.name == "scan":
        return eqn.params["length"]
    if eqn.primitive.name == "shard_map":
        sizes = eqn.params["mesh"].shape
        return math.prod(sizes[axis] for axis in eqn.params["newly_manual_axes"])
    return 1


def _inner_jaxprs(eqn: JaxprEqn) -> Iterator[Any]:
    """The jaxprs that an operation runs; not the small ones that say how to combine two entries."""
    if eqn.primitive.name in _COMBINED:
        return
    if eqn.primitive.name == "custom_linear_solve":
        yield eqn.params["jaxprs"].solve
        return
    yield from jaxprs_in_params(eqn.params)


_COMBINED = (
    *("reduce", "reduce_window", "reduce_and", "reduce_or", "reduce_xor", "select_and_scatter"),
    *("scatter", "scatter-add", "scatter-sub", "scatter-mul", "scatter-min", "scatter-max"),
)
