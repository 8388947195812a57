"""Trace a step, and what it differentiates apart, with a name for each value that goes in there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name

from outlay.core.jax_source import is_traced
from outlay.core.jax_tracing import fresh_traces, intercept_vjp, run_jaxpr
from outlay.program.modes import Step


def traced_gradients(step: Step, state: Any, batch: Any) -> tuple[Any, Any, list[Any]]:
    """Trace a step; return its trace and results, and the traces of what it differentiates, in their order.

    In the trace of the step, what goes into each of these has the name that `argument_name` returns.
    """
    seen: list[Any] = []
    named: list[Any] = []  # JAX drops an operation whose result nobody references

    def change(function: Callable[..., Any], *primals: Any) -> Callable[..., Any]:
        jaxpr, structure = traced_function(function, primals)
        for place, value in enumerate([*jaxpr.consts, *jax.tree.leaves(primals)]):
            if is_traced(value):
                named.append(checkpoint_name(value, argument_name(len(seen), place)))
        seen.append(jaxpr)
        return lambda *args: jax.tree.unflatten(
            structure, run_jaxpr(jaxpr, jax.tree.leaves(args), lambda _, values, bind: bind(*values))
        )

    # A jitted step would otherwise be traced only the first time.
    with fresh_traces(), jax.check_tracer_leaks(False), intercept_vjp(change, with_arguments=True):
        jaxpr, results = jax.make_jaxpr(lambda *args: step(*args), return_shape=True)(state, batch)
    return jaxpr, results, seen


def traced_function(function: Callable[..., Any], args: Any) -> tuple[Any, Any]:
    """Return the trace of a function and the structure of its results."""
    jaxpr, results = jax.make_jaxpr(lambda *args: function(*args), return_shape=True)(*args)
    return jaxpr, jax.tree.structure(results)


def argument_name(number: int, place: int) -> str:
    """Return the name of a value that goes into something differentiated: the constants first, then the arguments."""
    return f"outlay: argument {place} of gradient {number}"


def of_arguments(differentiated: Sequence[Any], named: dict[str, Any]) -> list[list[Any]]:
    """Return what is known of all that goes into each, given what is known by name; None where nothing is."""
    return [
        [named.get(argument_name(number, place)) for place in range(len(jaxpr.consts) + len(jaxpr.jaxpr.invars))]
        for number, jaxpr in enumerate(differentiated)
    ]
