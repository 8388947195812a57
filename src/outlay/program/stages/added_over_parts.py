"""Check that what a loss returns for parts of a batch adds up to what it returns for the whole.

A `train_step` sums losses and metrics over samples, so it does where each sample is computed by itself, and what is
summed is only scaled after that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax
from jax.extend.core import Literal, jaxprs_in_params

from outlay.core.error_types import ProgramError
from outlay.core.jax_source import source_line
from outlay.core.jax_tracing import CALLS, Operations, run_jaxpr
from outlay.core.primitives import BY_SAMPLE
from outlay.program.batch_locality import sums_samples
from outlay.program.mixed_samples import mixing_operations

_SCALES, _TAKES_EACH = (
    ("mul", "div"),
    ("convert_element_type", "neg", "copy", "reshape", "squeeze", "reduce_sum", "name", "stop_gradient"),
)
_ADDS = ("add", "add_any", "sub")


def opened_calls(jaxpr: Any) -> Any:
    """Return a traced program with the calls of jitted functions opened, except named ones with a meaning."""

    def run(inner: Any, values: Sequence[Any]) -> list[Any]:
        return run_jaxpr(inner, values, evaluate)

    def evaluate(eqn: Any, values: list[Any], bind: Any) -> list[Any]:
        if eqn.primitive.name in CALLS and eqn.params.get("name") not in BY_SAMPLE:
            return run(next(iter(jaxprs_in_params(eqn.params))), values)
        return bind(*values)

    return jax.make_jaxpr(lambda *values: run(jaxpr, values))(*jaxpr.in_avals)


def not_added_up(of_all: Any, of_few: Any, without: int) -> Iterator[tuple[Any, str]]:
    """Yield the operations that keep results of parts from adding up, each with its source line.

    Args:
        of_all: the program for all samples.
        of_few: the same for some, operation by operation.
        without: the place of an operation that is not asked, since others ask it: the scan over layers.
    """
    pairs = [*zip(of_all.jaxpr.eqns, of_few.jaxpr.eqns, strict=True)]
    added: set[Any] = set()
    shares: set[Any] = set()  # sums divided by the number of samples, of which each sample has one
    for place, (whole, few) in enumerate(pairs):
        if place == without:
            continue
        operands = [atom for atom in few.invars if not isinstance(atom, Literal)]
        if not (added | shares).isdisjoint(operands):
            kind = _after_sum(whole, few, added, shares)
            if kind is None:
                yield whole, source_line(whole)
            else:
                kind.update(few.outvars)
        elif _sums(whole, few):
            added.update(few.outvars)
        else:
            yield from mixing_operations(*(Operations([eqn], (), ()) for eqn in (whole, few)))
    for atom in of_few.jaxpr.outvars:
        if isinstance(atom, Literal) or atom not in added:
            eqn = next((one for one in of_all.jaxpr.eqns[::-1]), None)
            yield eqn, "a result of the loss"


def _sums(whole: Any, few: Any) -> bool:
    try:
        return sums_samples(whole, few)
    except ProgramError:  # two dims of samples
        return False


def _after_sum(whole: Any, few: Any, added: set[Any], shares: set[Any]) -> set[Any] | None:
    """Return to which of the two sets the results of an operation belong that takes values of them; None for none."""
    name, of_sums = few.primitive.name, [_is_in(atom, added) for atom in few.invars]
    if any(_is_in(atom, shares) for atom in few.invars):
        # Each sample's share, and the sum of all of these, which is the sum again.
        if name in ("broadcast_in_dim", "convert_element_type"):
            return shares
        return added if name == "reduce_sum" and _sums(whole, few) else None
    if name == "div" and of_sums == [True, False] and _is_number_of_samples(whole, few):
        return shares
    if _numbers(whole) != _numbers(few):
        return None
    if name in _TAKES_EACH or (name in _ADDS and all(of_sums)):
        return added
    if name == "broadcast_in_dim" and whole.outvars[0].aval.shape == few.outvars[0].aval.shape:
        return added
    is_scaled = name in _SCALES and of_sums in ([True, False], [False, True] if name == "mul" else [True, False])
    return added if is_scaled and whole.outvars[0].aval.shape == few.outvars[0].aval.shape else None


def _is_in(atom: Any, values: set[Any]) -> bool:
    return not isinstance(atom, Literal) and atom in values


def _numbers(eqn: Any) -> list[Any]:
    return [str(atom.val) for atom in eqn.invars if isinstance(atom, Literal)]


def _is_number_of_samples(whole: Any, few: Any) -> bool:
    return isinstance(few.invars[1], Literal) and _numbers(whole) != _numbers(few)
