"""The self-test of a pass over pairs: two rows of random numbers, against JAX's own evaluation of the same equations.

What it guards against: an interface of XLA, or a processor, that is not as it was taken to be.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from outlay.brain.delays import FEW_STEPS
from outlay.brain.fast_cpu.pair_pass import PairPass, TracedRow
from outlay.core.jax_machine_code import NoMachineCode

TOLERANCE = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}
"""Share of the largest entry by which a row may differ: a product and a sum may be rounded as one operation."""
_passed: set[str] = set()
"""The functions that passed."""


def check_pass(pairs: PairPass) -> None:
    """Raise unless a pass computes what it should; each is tried once in a process.

    Raises:
        NoMachineCode: it does not.
        NotCompiled: an equation is of a kind that is not known.
    """
    if pairs.function in _passed:
        return
    # While something else is traced: these numbers are computed now.
    with jax.ensure_compile_time_eval(), jax.default_device(jax.local_devices(backend="cpu")[0]):
        _compare(pairs)
    _passed.add(pairs.function)


def _compare(pairs: PairPass) -> None:
    """Compare what both make of two neurons, of which the second spiked."""
    random, num = np.random.default_rng(0), pairs.num_inputs
    rows = [random.random((2, num)).astype(dtype) for dtype in pairs.rows]
    words = random.integers(0, 2**32, num, np.uint32)
    sign = random.choice(np.array([-1, 1], np.float32), num)
    own_delays = pairs.delays is not None
    delays = random.integers(1, FEW_STEPS + 1, (2, num)).astype(pairs.delays or np.uint8)
    seen = words >> (delays if own_delays else np.zeros((2, num), np.uint32))
    traced = [row for row in (pairs.quiet, pairs.spiking) if row]
    consts = [[_some(random, like) for like in row.consts] for row in traced]
    # Where there is one neuron only, the second finds what the first has.
    doubled = [np.concatenate([const, const]) if const.ndim else const for of_row in consts for const in of_row]
    spiked, given = np.array([False, True]), [jnp.asarray(row) for row in rows]
    for pending in (False, True):
        expected = rows
        if pending and traced:
            each = [
                _evaluated(traced[i], consts[i], i, [row[i] for row in rows], (seen[i] & 2) != 0, delays[i], own_delays)
                for i in (0, 1)
            ]
            expected = [np.stack(both) for both in zip(*each, strict=True)]
        brought = (expected[0].astype(np.float64) * sign * ((seen & 1) != 0)).sum(1)
        after, current = jax.jit(pairs)(
            given, delays if own_delays else None, words, sign, spiked, np.asarray(pending), doubled
        )
        for name, got, right in zip(["kernel"] * len(rows), after, expected, strict=True):
            _check_close(name, got, right, TOLERANCE[str(right.dtype)])
        _check_close("current", current, brought, TOLERANCE[str(rows[0].dtype)])


def _evaluated(
    row: TracedRow, consts: list[Any], neuron: int, rows: list[Any], arrived: Any, delays: Any, own_delays: bool
) -> list[np.ndarray]:
    """The rows after a step, by JAX."""
    function = jaxpr_as_fun(ClosedJaxpr(row.jaxpr, consts))
    return [
        np.asarray(x) for x in jax.jit(function)(np.uint32(neuron), *rows, arrived, *([delays] if own_delays else []))
    ]


def _some(random: np.random.Generator, like: jax.ShapeDtypeStruct) -> np.ndarray:
    """Numbers from 0 to 1; of whole numbers 0 and 1, which are places in an array."""
    if jnp.issubdtype(like.dtype, jnp.floating):
        return random.random(like.shape).astype(like.dtype)
    return random.integers(0, 2, like.shape).astype(like.dtype)


def _check_close(what: str, got: Any, right: np.ndarray, tolerance: float) -> None:
    got, right = np.asarray(got, np.float64), np.asarray(right, np.float64)
    off = np.abs(got - right).max() / max(1e-30, np.abs(right).max())
    if not off <= tolerance:
        raise NoMachineCode(
            f"in its self-test the {what} is off by {off:.2g} of its largest entry, more than {tolerance:g}"
        )
