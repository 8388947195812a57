"""How JAX traces: what it is tracing, its operations run again one by one, and changes to what it is about to trace."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax._src import api, source_info_util
from jax._src.core import trace_state_clean
from jax.extend.core import Literal, Primitive


def is_tracing() -> bool:
    """Whether this thread is inside jit, grad, vmap or another transformation."""
    return not trace_state_clean()


def in_backward_pass() -> bool:
    """Whether the operation being traced comes from transposing another one."""
    return "transpose" in str(source_info_util.current().name_stack)


def varying_axes(x: Any) -> frozenset[str]:
    """The mesh axes along which a value differs from device to device, while `jax.shard_map` traces and checks it."""
    return frozenset(jax.typeof(x).mat.varying)


_trace_of = jax.make_user_context(None)


def fresh_traces() -> contextlib.AbstractContextManager[None]:
    """A context in which JAX traces every function anew, helpers of its own included.

    JAX traces a helper such as `jax.nn.gelu`, or the slicing of a loop's weights, once a process for the same shapes,
    and what it keeps bears the line of whoever called it first. In another program, `outlay.explain` would name that
    line, of a file that has nothing to do with it. JAX keeps traces by context, and this one is nobody else's.
    """
    return _trace_of(object())


def run_jaxpr(jaxpr: Any, values: Sequence[Any], evaluate: Callable[..., list[Any]]) -> list[Any]:
    """Run the operations of a traced program one by one, each as if from the source line that it came from.

    Args:
        jaxpr: the program, closed or not.
        values: what it takes; they need not be arrays.
        evaluate: `evaluate(eqn, values, bind)` gives the results of an operation, such as `bind(*values)`.
    """
    consts, jaxpr = getattr(jaxpr, "consts", ()), getattr(jaxpr, "jaxpr", jaxpr)
    known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *values], strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else known[atom]

    for eqn in jaxpr.eqns:

        def bind(*values: Any, eqn: Any = eqn) -> list[Any]:
            results = eqn.primitive.bind(*values, **eqn.primitive.get_bind_params(eqn.params))
            return results if eqn.primitive.multiple_results else [results]

        names = source_info_util.current_name_stack() + eqn.source_info.name_stack
        with source_info_util.user_context(eqn.source_info.traceback, name_stack=names), eqn.ctx.manager:
            known.update(zip(eqn.outvars, evaluate(eqn, [read(atom) for atom in eqn.invars], bind), strict=True))
    return [read(atom) for atom in jaxpr.outvars]


SCAN, CHECKPOINTS, CALLS = "scan", ("remat2", "checkpoint"), ("jit", "pjit", "closed_call")
"""Names of operations that hold programs: a `lax.scan`, a `jax.checkpoint`, a call of a jitted function."""


@dataclass(frozen=True)
class Operations:
    """Some operations of a traced program, as a program of their own that `run_jaxpr` runs."""

    eqns: Sequence[Any]
    invars: Sequence[Any]
    outvars: Sequence[Any]
    constvars: Sequence[Any] = ()


def scan_operands(params: Mapping[str, Any]) -> tuple[int, int]:
    """Of the operands of a `lax.scan`, how many are constants and how many are carried; the rest are scanned."""
    if "ft_in" not in params:
        return params["num_consts"], params["num_carry"]
    consts, carried, _ = params["ft_in"].unpack()
    return len(consts), len(carried)


def rerun_scan(
    params: Mapping[str, Any],
    values: Sequence[Any],
    run: Callable[[list[Any]], list[Any]],
    wrap: Callable[[Any], Any] = lambda turn: turn,
) -> list[Any]:
    """Run a traced `lax.scan` again, each turn of it in another way.

    Args:
        params: the parameters of the operation.
        values: its operands.
        run: what a turn does with its constants, what is carried, and its slices.
        wrap: a transformation of the whole turn, such as `jax.checkpoint`.
    """
    num_consts, num_carried = scan_operands(params)
    consts, start, stacked = values[:num_consts], values[num_consts:][:num_carried], values[num_consts + num_carried :]

    def turn(carried: list[Any], slices: list[Any]) -> tuple[list[Any], list[Any]]:
        results = run([*consts, *carried, *slices])
        return results[:num_carried], results[num_carried:]

    how = {name: params[name] for name in ("length", "reverse", "unroll", "_split_transpose") if name in params}
    carried, results = jax.lax.scan(wrap(turn), list(start), list(stacked), **how)
    return [*carried, *results]


@contextlib.contextmanager
def intercepting(intercept: Callable[..., Any]) -> Iterator[None]:
    """Have `intercept(primitive, bind, args, params)` stand in for every operation that this thread traces.

    Args:
        intercept: returns what `bind(*args, **params)` would: the operation's results.
    """
    original, thread = Primitive.bind, threading.get_ident()

    def bind(self: Primitive, *args: Any, **params: Any) -> Any:
        plainly = functools.partial(original, self)
        if threading.get_ident() != thread:
            return plainly(*args, **params)
        return intercept(self, plainly, args, params)

    Primitive.bind = bind
    try:
        yield
    finally:
        Primitive.bind = original


@contextlib.contextmanager
def differentiating(change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """Have this thread differentiate `change(function)` wherever it is told to differentiate a function.

    It reaches `jax.grad`, `jax.value_and_grad` and `jax.vjp`, however somebody came by them, and so every library's.

    Args:
        change: returns a function of the same arguments and results.
    """
    original, thread = api.vjp, threading.get_ident()

    def vjp(function: Callable[..., Any], *primals: Any, **options: Any) -> Any:
        mine = change(function) if threading.get_ident() == thread else function
        return original(mine, *primals, **options)

    api.vjp = jax.vjp = vjp
    try:
        yield
    finally:
        api.vjp = jax.vjp = original
