"""What JAX differentiates, handed to somebody first: private, and apart from `jax_compat` for its length alone."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax._src import api


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
