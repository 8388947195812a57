"""Name a value inside a step, so that a layout can say where it lives. The step itself never names a mesh."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

Resolver = Callable[[str, Any], Any]

_resolver: ContextVar[Resolver | None] = ContextVar("outlay_constrain", default=None)


def constrain(tree: Any, name: str) -> Any:
    """Give intermediate values a name that rules can place: `("grads.**", P("data"))`.

    Inside a program the leaves that a rule places are constrained to it. Where no rule speaks of the name, and
    outside a program, the values come back untouched.

    Args:
        tree: arrays, of any tree.
        name: the first part of their paths, such as `grads`.

    Returns:
        The same tree with the same values.

    Example:
        >>> outlay.constrain({"w": 1.0}, "grads")
        {'w': 1.0}
    """
    resolver = _resolver.get()
    return tree if resolver is None else resolver(name, tree)


@contextlib.contextmanager
def resolving(resolver: Resolver) -> Iterator[None]:
    """Let `constrain` call a resolver while a step is traced."""
    token = _resolver.set(resolver)
    try:
        yield
    finally:
        _resolver.reset(token)
