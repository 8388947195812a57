"""Find the operations of a program that take samples of a batch together, or use their number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal, jaxprs_in_params

from outlay.core.error_types import ProgramError
from outlay.core.jax_source import calls_to, is_traced, line_of, source_line
from outlay.core.jax_tracing import CALLS, CHECKPOINTS, COND, CUSTOM_RULES, SCAN, WHILE
from outlay.core.primitives import BY_SAMPLE
from outlay.program.batch_locality import are_equal, is_local

HOLDING = frozenset([SCAN, WHILE, COND, *CALLS, *CHECKPOINTS, *CUSTOM_RULES])
"""Operations that hold programs."""


def mixing_operations(of_all: Any, of_own: Any) -> Iterator[tuple[Any, str]]:
    """Yield the operations of a program that take samples together, or use their number, each with its source line.

    Of operations within operations, the innermost.

    Args:
        of_all: the program, traced for all samples.
        of_own: the same, traced for some.
    """
    consts = zip(getattr(of_all, "consts", ()), getattr(of_own, "consts", ()), strict=False)
    of_all, of_own = getattr(of_all, "jaxpr", of_all), getattr(of_own, "jaxpr", of_own)
    if [eqn.primitive for eqn in of_all.eqns] != [eqn.primitive for eqn in of_own.eqns]:
        pairs = zip(of_all.eqns, of_own.eqns, strict=False)
        first = next((a for a, b in pairs if a.primitive != b.primitive), (of_all.eqns or of_own.eqns)[-1])
        yield first, source_line(first)
        return
    if any(_have_other_numbers(*pair) for pair in consts):
        yield of_all.eqns[0], source_line(of_all.eqns[0])
    for a, b in zip(of_all.eqns, of_own.eqns, strict=True):
        if len(a.outvars) != len(b.outvars):  # as many results as samples
            yield a, source_line(a)
            continue
        atoms = zip((*a.invars, *a.outvars), (*b.invars, *b.outvars), strict=True)
        if any(_have_other_numbers(*pair) for pair in atoms) or a.params.get("length") != b.params.get("length"):
            yield a, source_line(a)
        elif a.primitive.name in HOLDING and a.params.get("name") not in BY_SAMPLE:
            for pair in zip(*(jaxprs_in_params(eqn.params) for eqn in (a, b)), strict=True):
                for inner, line in mixing_operations(*pair):
                    # The cached trace of a helper of JAX has the lines of whoever called it first.
                    is_cached = a.primitive.name in CALLS and not _leads_to(source_line(a), inner)
                    yield inner, source_line(a) if is_cached else line
        elif not _is_apart(a, b):
            yield a, source_line(a)


def _leads_to(line: str, eqn: Any) -> bool:
    """Return whether a line is among the calls that led to an operation."""
    return any(f"{call[0].co_filename}:{line_of(call)}" == line for call in calls_to(eqn))


def _is_apart(all_: Any, own: Any) -> bool:
    try:
        return is_local(all_, own)
    except ProgramError:  # it has two dims of samples
        return False


def _have_other_numbers(of_all: Any, of_own: Any) -> bool:
    """Return whether two constants of one shape have different values; of arrays, too."""
    both = [atom.val if isinstance(atom, Literal) else atom for atom in (of_all, of_own)]
    if not all(isinstance(one, (int, float, complex, bool, np.ndarray, np.generic, jax.Array)) for one in both):
        return False
    if any(is_traced(one) or jnp.issubdtype(jnp.result_type(one), jax.dtypes.extended) for one in both):
        return both[0] is not both[1]
    return not are_equal(*both)
