"""Traces that no other program lends: so that each program bears its own source lines."""

from __future__ import annotations

import contextlib

import jax

_trace_of = jax.make_user_context(None)


def fresh_traces() -> contextlib.AbstractContextManager[None]:
    """A context in which JAX traces every function anew, helpers of its own included.

    JAX traces a helper such as `jax.nn.gelu`, or the slicing of a loop's weights, once a process for the same shapes,
    and what it keeps bears the line of whoever called it first. In another program, `outlay.explain` would name that
    line, of a file that has nothing to do with it. JAX keeps traces by context, and this one is nobody else's.
    """
    return _trace_of(object())
