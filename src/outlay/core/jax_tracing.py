"""Ask JAX what it is tracing, run a traced program again operation by operation, and intercept what is traced next."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax._src import api, source_info_util, tree_util
from jax._src.core import ShardingTypeError, trace_state_clean
from jax.extend.core import Literal, Primitive, jaxprs_in_params


def is_tracing() -> bool:
    """Return whether this thread is inside jit, grad, vmap or another transformation."""
    return not trace_state_clean()


def is_sharding_error(error: BaseException) -> bool:
    """Return whether JAX refused an operation because of how its operands are split on Explicit axes."""
    return isinstance(error, ShardingTypeError)


def made_at(tracer: Any) -> str:
    """Return the line that made a traced value, as `file:line (function)`; empty where JAX does not say."""
    info = getattr(tracer, "_line_info", None)
    return "" if info is None or info.traceback is None else source_info_util.summarize(info)


def varying_axes(x: Any) -> frozenset[str]:
    """Return the mesh axes over which a value varies (JAX's "vma"), while `jax.shard_map` traces and checks it."""
    return frozenset(jax.typeof(x).mat.varying)


def fills_fields(node_type: type) -> bool:
    """Return whether JAX rebuilds nodes of a class by filling the fields of a dataclass, where no code of its own runs.

    Args:
        node_type: a class that may be registered as a node of trees.
    """
    entry = tree_util._registry.get(node_type)
    if entry is None or not getattr(entry.from_iter, "__qualname__", "").lstrip("_").startswith("register_dataclass."):
        return False
    is_generated = getattr(getattr(node_type.__init__, "__code__", None), "co_filename", "") == "<string>"
    return is_generated and not hasattr(node_type, "__post_init__") and node_type.__new__ is object.__new__


_trace_of = jax.make_user_context(None)


def fresh_traces() -> contextlib.AbstractContextManager[None]:
    """Return a context in which JAX traces every function anew, its own helpers included.

    JAX caches the trace of a helper such as `jax.nn.gelu`, or of slicing a loop's weights, by shapes, once per process.
    The cached trace carries the source line of its first caller, so `outlay.explain` would name a line of an unrelated
    program; and what a jitted layer named in another trace, the layout would not be asked about again. The cache is
    keyed by context, and this context is used nowhere else.
    """
    return _trace_of(object())


def settings() -> dict[str, Any]:
    """Return the settings of JAX here that a trace may depend on, such as the precision of products, by name."""
    # Those of its caches change what is compiled again, and nothing else.
    names = {name: value for name, value in jax.config.values.items() if "cache" not in name}
    return {name: getattr(jax.config, name, value) for name, value in names.items()}


def run_jaxpr(
    jaxpr: Any, values: Sequence[Any], evaluate: Callable[..., list[Any]], *, in_its_mesh: bool = True
) -> list[Any]:
    """Run the operations of a traced program one by one, each with its original source line.

    Args:
        jaxpr: the program, closed or not.
        values: its arguments; they need not be arrays.
        evaluate: `evaluate(eqn, values, bind)` returns the results of an operation, such as `bind(*values)`.
        in_its_mesh: whether in the context in which it was traced, with its mesh; else in the one that is set now.
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
        context = eqn.ctx.manager if in_its_mesh else contextlib.nullcontext()
        with source_info_util.user_context(eqn.source_info.traceback, name_stack=names), context:
            known.update(zip(eqn.outvars, evaluate(eqn, [read(atom) for atom in eqn.invars], bind), strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def replay(jaxpr: Any, values: Sequence[Any]) -> list[Any]:
    """Run the operations of a traced program as they are; see `run_jaxpr`."""
    return run_jaxpr(jaxpr, values, lambda eqn, values, bind: bind(*values))


def at_source_of(eqn: Any) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """Return what makes contexts in which all that is traced has the source line and the scopes of an operation."""

    def context() -> contextlib.AbstractContextManager[Any]:
        names = source_info_util.current_name_stack() + eqn.source_info.name_stack
        return source_info_util.user_context(eqn.source_info.traceback, name_stack=names)

    return context


def operations(jaxpr: Any, name: str = "") -> Iterator[Any]:
    """Yield the operations of a traced program, closed or not; those in a loop, branch or call before that itself.

    Args:
        jaxpr: the program.
        name: the name of the operations; by default all are yielded.
    """
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        for inner in jaxprs_in_params(eqn.params):
            yield from operations(inner, name)
        if not name or eqn.primitive.name == name:
            yield eqn


SCAN, WHILE, COND = "scan", "while", "cond"
"""Names of operations that hold programs: two loops, and a branch."""
CHECKPOINTS, CALLS = ("remat2", "checkpoint"), ("jit", "pjit", "closed_call")
"""Names of operations that hold programs: of a `jax.checkpoint`, and of a call of a jitted function."""
plain_vjp = api.vjp  # which `intercept_vjp` does not replace
CUSTOM_RULES = ("custom_jvp_call", "custom_vjp_call")
"""Names of calls of functions with derivatives of their own."""


@dataclass(frozen=True)
class Operations:
    """Some operations of a traced program as a program of their own, which `run_jaxpr` runs."""

    eqns: Sequence[Any]
    invars: Sequence[Any]
    outvars: Sequence[Any]
    constvars: Sequence[Any] = ()


def scan_operands(params: Mapping[str, Any]) -> tuple[int, int]:
    """Return how many operands of a `lax.scan` are constants and how many are carried; the rest are scanned."""
    # JAX 0.12 replaced the counts by a tree of the operands, `ft_in`.
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
    """Run a traced `lax.scan` again with another body.

    Args:
        params: the parameters of the operation.
        values: its operands.
        run: the body: takes its constants, carry and slices; returns the new carry and the outputs.
        wrap: a transformation of the whole body, such as `jax.checkpoint`.
    """
    num_consts, num_carried = scan_operands(params)
    consts, start, stacked = values[:num_consts], values[num_consts:][:num_carried], values[num_consts + num_carried :]

    def turn(carried: list[Any], slices: list[Any]) -> tuple[list[Any], list[Any]]:
        results = run([*consts, *carried, *slices])
        return results[:num_carried], results[num_carried:]

    how = {name: params[name] for name in ("length", "reverse", "unroll", "_split_transpose") if name in params}
    carried, results = jax.lax.scan(wrap(turn), list(start), list(stacked), **how)
    return [*carried, *results]


def rerun_while(
    params: Mapping[str, Any], values: Sequence[Any], run: Callable[[Any, Sequence[Any]], list[Any]]
) -> list[Any]:
    """Run a traced `lax.while_loop` again with another test and another body.

    Args:
        params: the parameters of the operation.
        values: its operands.
        run: runs a program, the test's or the body's, on its arguments.
    """
    first, second = params["cond_nconsts"], params["body_nconsts"]
    of_test, of_body, start = values[:first], values[first : first + second], values[first + second :]
    return jax.lax.while_loop(
        lambda carried: run(params["cond_jaxpr"], [*of_test, *carried])[0],
        lambda carried: run(params["body_jaxpr"], [*of_body, *carried]),
        list(start),
    )


def rerun_cond(
    params: Mapping[str, Any], values: Sequence[Any], run: Callable[[Any, Sequence[Any]], list[Any]]
) -> list[Any]:
    """Run a traced `lax.cond` or `lax.switch` again with other branches; parameters as of `rerun_while`."""

    def branch(jaxpr: Any, *values: Any) -> list[Any]:
        return run(jaxpr, values)

    branches = [functools.partial(branch, jaxpr) for jaxpr in params["branches"]]
    return jax.lax.switch(values[0], branches, *values[1:])


def rerun_custom(eqn: Any, values: Sequence[Any], run: Callable[[Any, Sequence[Any]], list[Any]]) -> list[Any]:
    """Run a traced call of a function with derivatives of its own again; these stay as they are.

    Args:
        eqn: the operation.
        values: its operands.
        run: runs the function's program on its arguments.
    """
    jaxpr = eqn.params["call_jaxpr"]
    other = jax.make_jaxpr(lambda *values: run(jaxpr, values))(*(variable.aval for variable in eqn.invars))
    params = eqn.primitive.get_bind_params({**eqn.params, "call_jaxpr": other})
    return eqn.primitive.bind(*values, **params)


def rerun(eqn: Any, values: Sequence[Any], run: Callable[[Any, Sequence[Any]], list[Any]]) -> list[Any]:
    """Run a traced operation that holds programs again: a loop, a branch, a call or a `jax.checkpoint`.

    Args:
        eqn: the operation.
        values: its operands.
        run: runs one of its programs on its arguments.
    """
    params, name = eqn.params, eqn.primitive.name
    if name == SCAN:
        return rerun_scan(params, values, lambda turn: run(params["jaxpr"], turn))
    if name in (WHILE, COND):
        return (rerun_while if name == WHILE else rerun_cond)(params, values, run)
    if name in CUSTOM_RULES:
        return rerun_custom(eqn, values, run)
    inner = functools.partial(run, next(iter(jaxprs_in_params(params))))
    if name in CALLS:
        return inner(values)
    return jax.checkpoint(inner, policy=params["policy"], prevent_cse=params["prevent_cse"])(values)


@contextlib.contextmanager
def intercept_operations(intercept: Callable[..., Any]) -> Iterator[None]:
    """Call `intercept(primitive, bind, args, params)` for every operation that this thread traces.

    Args:
        intercept: returns what `bind(*args, **params)` would: the operation's results.
    """
    original, thread = Primitive.bind, threading.get_ident()

    def bind(self: Primitive, *args: Any, **params: Any) -> Any:
        plainly = functools.partial(original, self)
        # The method is replaced for all threads: others, such as an asynchronous save, must not notice.
        if threading.get_ident() != thread:
            return plainly(*args, **params)
        return intercept(self, plainly, args, params)

    Primitive.bind = bind
    try:
        yield
    finally:
        Primitive.bind = original


@contextlib.contextmanager
def intercept_vjp(change: Callable[..., Callable[..., Any]], *, with_arguments: bool = False) -> Iterator[None]:
    """Differentiate `change(function)` in place of `function` within the block, in this thread.

    `jax.grad`, `jax.value_and_grad` and `jax.vjp` all end in the function that is replaced, so every library is
    reached.

    Args:
        change: returns a function of the same arguments and results.
        with_arguments: whether it is given also those that the function is differentiated with respect to.
    """
    original, thread = api.vjp, threading.get_ident()

    def vjp(function: Callable[..., Any], *primals: Any, **options: Any) -> Any:
        if threading.get_ident() == thread:
            function = change(function, *primals) if with_arguments else change(function)
        return original(function, *primals, **options)

    api.vjp = jax.vjp = vjp
    try:
        yield
    finally:
        api.vjp = jax.vjp = original
