"""Check that a step does for some rows what it does for all, before a layout splits them.

It is traced for two numbers of rows. What is computed for each row by itself is the same operation in both, on arrays
that differ in one dim; a sum over rows, or noise drawn for all of them at once, is not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Literal, jaxprs_in_params

from outlay.core.error_types import Problem, ProgramError
from outlay.core.jax_source import source_line
from outlay.core.paths import map_with_paths, matches
from outlay.core.primitives import KINDS
from outlay.core.quantities import counted
from outlay.graph.rows import Rows
from outlay.graph.step_graph import RowStep
from outlay.program.batch_locality import is_local

_SOME = 2
"""The smaller number of rows."""


def check_rows(rows: Rows) -> None:
    """Raise if the step of a part that is split looks at other rows than its own.

    Raises:
        ProgramError: it does; the message names the line.
    """
    steps = [
        step
        for name in (rows.num if rows.num_devices > 1 else ())
        if (of_part := rows.graph.parts[name].row_steps)
        for step in of_part()
    ]
    problems = [problem for step in steps for problem in _problems(step)]
    if problems:
        raise ProgramError(
            f"{counted(len(problems), 'step cannot', 'steps cannot')} be split by rows: on some of the "
            f"{steps[0].rows} it is not what it is on all",
            problems,
        )


def _problems(one: RowStep) -> Iterator[Problem]:
    def of_some(leaf: Any) -> Any:
        return jax.ShapeDtypeStruct((_SOME, *leaf.shape[1:]), leaf.dtype)

    def cut(path: str, leaf: Any) -> Any:
        return of_some(leaf) if any(matches(pattern, path) for pattern in one.by_rows) else leaf

    kind = f"not by {one.rows}"
    fix = (
        "a layout of whole parts (of a graph: copies, or parts on devices of their own); or a step that takes the "
        f"{one.rows} one by one"
    )
    some = map_with_paths(cut, one.state), jax.tree.map(of_some, one.given) if one.given_has_rows else one.given
    if jax.tree.map(jnp.shape, some) == jax.tree.map(jnp.shape, (one.state, one.given)):
        return  # as few rows as that
    of_all = jax.make_jaxpr(one.step)(one.state, one.given)
    try:
        of_own = jax.make_jaxpr(one.step)(*some)
    except Exception as error:  # whatever an author's code raises for arrays of another size
        what = f"its step raises for {_SOME} {one.rows}: {type(error).__name__}: {str(error).splitlines()[0]}"
        yield Problem(kind, one.name, what, f"sizes from the arrays that it gets, not from its settings; or {fix}")
        return
    if mixing := _first_mixing(of_all.jaxpr, of_own.jaxpr):
        operation, line = mixing
        what = f"{operation} looks at other {one.rows}, or at how many there are" + (f": {line}" if line else "")
        yield Problem(kind, one.name, what, fix)


Operation = tuple[str, str]
"""The name of an operation, and the user's line that it is from."""


def _first_mixing(of_all: Any, of_own: Any) -> Operation | None:
    """Return the first operation that does not treat each row by itself and that a result follows from."""
    if [eqn.primitive for eqn in of_all.eqns] != [eqn.primitive for eqn in of_own.eqns]:
        pairs = zip(of_all.eqns, of_own.eqns, strict=False)
        return _named(next((a for a, b in pairs if a.primitive != b.primitive), of_all.eqns[-1]))
    needed = {variable for variable in of_all.outvars if not isinstance(variable, Literal)}
    mixing = None
    for a, b in reversed(list(zip(of_all.eqns, of_own.eqns, strict=True))):
        if needed.isdisjoint(a.outvars):
            continue
        needed |= {variable for variable in a.invars if not isinstance(variable, Literal)}
        mixing = _mixing_in(a, b) or mixing
    return mixing


def _named(eqn: Any) -> Operation:
    return eqn.primitive.name, source_line(eqn)


def _mixing_in(a: Any, b: Any) -> Operation | None:
    """Return the operation that mixes rows within one operation of the trace; None if none does."""
    try:
        if is_local(a, b) and not _uses_their_number(a, b):
            return None
    except ProgramError:  # every row with every other
        return _named(a)
    inner = list(zip(jaxprs_in_params(a.params), jaxprs_in_params(b.params), strict=True))
    if not inner:
        return _named(a) if _is_known_to_mix(a, b) else None
    if a.primitive.name == "while":  # whether a loop over rows goes on, all of them say: each row then stays as it is
        inner = inner[1:]
    for x, y in inner:
        if mixing := _first_mixing(getattr(x, "jaxpr", x), getattr(y, "jaxpr", y)):
            # A function of JAX's is traced once, wherever it is called.
            return mixing[0], mixing[1] or source_line(a)
    return None


def _is_known_to_mix(a: Any, b: Any) -> bool:
    """Return whether rows come out of none, or come in and not out: of operations that are known to no list, too."""
    came_in, came_out = (
        [x.aval.shape != y.aval.shape for x, y in zip(*pair, strict=True)]
        for pair in ((a.invars, b.invars), (a.outvars, b.outvars))
    )
    if any(came_in) != any(came_out) or _uses_their_number(a, b):
        return True
    return a.primitive.name in _ALONG_ROWS


_ALONG_ROWS = KINDS["cumulative"] | {"sort", "rev", "concatenate", "dot_general", "gather"}
"""Operations on rows that `is_local` knows and has found to mix them, with rows before and after."""


def _uses_their_number(a: Any, b: Any) -> bool:
    values = [
        (x.val, y.val)
        for x, y in zip(a.invars, b.invars, strict=True)
        if isinstance(x, Literal) and isinstance(y, Literal)
    ]
    return any(jnp.shape(x) == jnp.shape(y) and bool(jnp.any(jnp.asarray(x) != jnp.asarray(y))) for x, y in values)
