"""Run a traced scan again with sums of its stacked outputs as its carry; private are the parameters of a scan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from outlay.core.jax_tracing import run_jaxpr, scan_operands


def rerun_scan_onto(params: Mapping[str, Any], values: Sequence[Any], sums: Mapping[int, Any]) -> list[Any]:
    """Run a traced `lax.scan` again, with some of its stacked outputs added in place to arrays of their shape.

    The arrays are carried, and each turn adds its slice where it belongs; so no stack of these outputs is made.

    Args:
        params: the parameters of the operation.
        values: its operands.
        sums: what is added to, by the number of the result.
    """
    num_consts, num_carried = scan_operands(params)
    consts, start, stacked = values[:num_consts], values[num_consts:][:num_carried], values[num_consts + num_carried :]
    length, is_reversed = params["length"], params["reverse"]

    def turn(carried: tuple[Any, ...], slices: list[Any]) -> tuple[tuple[Any, ...], list[Any]]:
        own, so_far, turns = carried
        results = run_jaxpr(params["jaxpr"], [*consts, *own, *slices], lambda eqn, values, bind: bind(*values))
        at = length - 1 - turns if is_reversed else turns
        added = {number: _add_at(total, results[number], at) for number, total in so_far.items()}
        others = [each for number, each in enumerate(results) if number >= num_carried and number not in sums]
        return (results[:num_carried], added, turns + 1), others

    how = {name: params[name] for name in ("length", "reverse", "unroll", "_split_transpose") if name in params}
    begin = (list(start), dict(sums), jnp.int32(0))
    (carried, totals, _), others = jax.lax.scan(turn, begin, list(stacked), **how)
    left = iter(others)
    num = len(params["jaxpr"].out_avals)
    return [*carried, *(totals[k] if k in sums else next(left) for k in range(num_carried, num))]


def _add_at(total: Any, part: Any, at: Any) -> Any:
    """Add an array to one entry of a stack of such."""
    before = jax.lax.dynamic_index_in_dim(total, at, keepdims=False)
    return jax.lax.dynamic_update_index_in_dim(total, before + part.astype(total.dtype), at, 0)
