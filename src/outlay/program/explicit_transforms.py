"""Refuse FFTs along a split dim on Explicit axes, where the compiler would end the process."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import jax
from jax.extend.core import jaxprs_in_params
from jax.sharding import Mesh

from outlay.core.error_types import Problem, ProgramError
from outlay.core.jax_source import source_line
from outlay.core.quantities import counted
from outlay.program.independent_dims import is_fft_that_ends_xla


def check_transforms(jaxpr: Any, mesh: Mesh, what: str) -> None:
    """Raise for FFTs that XLA cannot split; on Explicit axes nobody else has a word in how their operands are split.

    Args:
        jaxpr: the program, traced with the types of its arguments.
        mesh: a mesh with Explicit axes.
        what: what the program is, for the message.

    Raises:
        ProgramError: there are some; the message lists all, with their lines.
    """
    odd = [_problem(eqn, line) for eqn, line in _with_lines(jaxpr, "") if _ends_xla(eqn, mesh)]
    problems = list({(problem.where, problem.what): problem for problem in odd}.values())
    if problems:
        what = f"{what} has {counted(len(problems), 'FFT')} along a split dim"
        raise ProgramError(f"{what}, at which XLA of JAX {jax.__version__} ends the process", problems)


def _with_lines(jaxpr: Any, outer: str) -> Iterator[tuple[Any, str]]:
    """Yield all operations with their lines; inside functions of `jax.numpy`, that of the call."""
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        line = source_line(eqn) or outer
        yield eqn, line
        for inner in jaxprs_in_params(eqn.params):
            yield from _with_lines(inner, line)


def _ends_xla(eqn: Any, mesh: Mesh) -> bool:
    platform = mesh.devices.flat[0].platform
    return bool(eqn.invars) and is_fft_that_ends_xla(eqn, lambda dim: math.prod(_sizes(eqn, dim)), platform)


def _sizes(eqn: Any, dim: int) -> list[int]:
    sharding = eqn.invars[0].aval.sharding
    entry = dict(enumerate(sharding.spec)).get(dim)
    names = () if entry is None else (entry,) if isinstance(entry, str) else entry
    return [sharding.mesh.shape[name] for name in names]


def _problem(eqn: Any, line: str) -> Problem:
    aval = eqn.invars[0].aval
    first = aval.ndim - len(eqn.params["fft_lengths"])
    split = [dim for dim in range(first, aval.ndim) if math.prod(_sizes(eqn, dim)) > 1]
    parts = " and ".join(f"dim {dim} of {aval.shape[dim]} over {math.prod(_sizes(eqn, dim))} devices" for dim in split)
    batch_dims = [f"{entry!r}" for entry in (*aval.sharding.spec, *[None] * aval.ndim)[:first]]
    whole = ", ".join([*batch_dims, *["None"] * (aval.ndim - first)])
    return Problem(
        "FFT",
        line,
        f"its operand {aval.str_short()} has {parts}, whose length is no multiple of that number's square",
        f"make it whole there: jax.sharding.reshard(x, P({whole})) before it; or split another dim",
    )
