"""Take from a traced program what some of its results need, and its constants as arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax._src.interpreters import partial_eval
from jax.extend.core import ClosedJaxpr


def needed_for(jaxpr: Any, results: Sequence[bool] | None = None) -> tuple[Any, list[bool]]:
    """Return what a traced program needs for some of its results, and which of its arguments that takes.

    Args:
        jaxpr: the program, closed.
        results: the results; all of them by default, and then all arguments stay.
    """
    asked = [True] * len(jaxpr.jaxpr.outvars) if results is None else list(results)
    needed, used = partial_eval.dce_jaxpr(jaxpr.jaxpr, asked, instantiate=results is None)
    return ClosedJaxpr(needed, jaxpr.consts), used


def constants_as_arguments(jaxpr: Any) -> tuple[Any, list[Any]]:
    """Return a traced program that takes its constants before its arguments, and the constants."""
    return ClosedJaxpr(partial_eval.convert_constvars_jaxpr(jaxpr.jaxpr), ()), list(jaxpr.consts)
