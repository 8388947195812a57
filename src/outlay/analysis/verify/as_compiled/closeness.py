"""Compare what a compiled program computed with one device, array by array, allowing for the target's rounding.

How much rounding may do is measured, not guessed: the reference is computed again from numbers that are moved by as
much as the coarsest floats of the compiled program round. What then moves in a result may move in the program's. Where
that does not explain a difference, the reference is computed in float64 as well: as far as it is from that itself, the
program may be, too. Sums of bfloat16 are rounded at each number, which no move of what they add up shows: a row of an
embedding's gradient adds up one for each time that its token occurs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from outlay.analysis.hlo.execute.literal import dtype_of
from outlay.analysis.hlo.hlo_module import HloModule
from outlay.analysis.verify.verification import Kind, LeafCheck

Results = Mapping[tuple[Kind, str], np.ndarray]

NUM_MOVED = 3
"""How often the reference is computed again from moved numbers."""

# A product rounds both operands and its sum, a step has many products in a row, and a few draws see not the worst.
# Over a whole array that is half as far: draws are many there.
_FACTOR, _FACTOR_OF_NORM = 8, 4
_DIGITS = 4  # units in the last place by which an entry may differ without any product: a last sum in another order
# Sums of many numbers in another order: each sum rounds, and n roundings of random signs add up to the root of n.
_LAST_DIGIT = 1.5  # units in the last place that only the last rounding of moved numbers is worth
_TOO_COARSE = 0.5
_EACH_AS_FAR = 2
"""Two that are as far from what is exact are at most twice as far from one another."""


def coarsest_float(module: HloModule) -> np.dtype:
    """Return the coarsest type in which a program computes with floats, leaving out those below 16 bits.

    Examples:
        >>> from outlay.analysis.hlo.parse import parse_hlo
        >>> str(coarsest_float(parse_hlo('''HloModule jit_f
        ...
        ... ENTRY %main (x: f32[4]) -> bf16[4] {
        ...   %x = f32[4]{0} parameter(0)
        ...   ROOT %y = bf16[4]{0} convert(%x)
        ... }''')))
        'bfloat16'
    """
    names = {shape.dtype for _, one in module.instructions() for shape in one.shapes}
    floats = [dtype for name in names if (dtype := dtype_of(name)) is not None and jnp.issubdtype(dtype, jnp.floating)]
    return max(
        (dtype for dtype in floats if dtype.itemsize > 1),
        key=lambda dtype: float(jnp.finfo(dtype).eps),
        default=np.dtype(np.float32),
    )


def longest_sum(module: HloModule) -> int:
    """Return how many numbers the longest reduction or product of a program adds up into one.

    Examples:
        >>> from outlay.analysis.hlo.parse import parse_hlo
        >>> longest_sum(parse_hlo('''HloModule jit_f
        ...
        ... ENTRY %main (x: f32[4,5], y: f32[5,3]) -> f32[4,3] {
        ...   %x = f32[4,5]{1,0} parameter(0)
        ...   %y = f32[5,3]{1,0} parameter(1)
        ...   ROOT %z = f32[4,3]{1,0} dot(%x, %y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
        ... }'''))
        5
    """
    longest = 1
    for computation, one in module.instructions():
        if one.opcode not in _SUMS or not one.shapes:
            continue
        operands = [computation.instructions[name].shapes for name in one.operands]
        sizes = [math.prod(shapes[0].dims) for shapes in operands if shapes]
        result = max(math.prod(one.shapes[0].dims), 1)
        if one.opcode == "reduce":
            longest = max(longest, sizes[0] // result)
        elif len(sizes) > 1:
            longest = max(longest, math.isqrt(sizes[0] * sizes[1] // result))
    return longest


_SUMS = ("reduce", "dot", "convolution", "custom-call")


def moved(tree: Any, eps: float, seed: int) -> Any:
    """Move every float of a tree by up to a share of itself, as rounding to that many digits does."""
    rng = np.random.default_rng(seed)

    def one(leaf: Any) -> Any:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        return (leaf.astype(np.float64) * (1 + eps * rng.uniform(-1, 1, leaf.shape))).astype(leaf.dtype)

    return jax.tree.map(one, tree)


def from_same_start(
    results: Results, before: Mapping[str, np.ndarray], moved_before: Mapping[str, np.ndarray]
) -> Results:
    """Take off each new state by how much its start was moved: what is left is what the step makes of it."""

    def one(key: tuple[Kind, str], leaf: np.ndarray) -> np.ndarray:
        kind, path = key
        if kind != "state" or not jnp.issubdtype(leaf.dtype, jnp.inexact) or path not in before:
            return leaf
        start, moved_start = before[path], moved_before[path]
        return _wide(leaf) - (_wide(moved_start) - _wide(start)) if start.shape == leaf.shape else leaf

    return {key: one(key, leaf) for key, leaf in results.items()}


def close(
    step: int,
    before: Mapping[str, np.ndarray],
    got: Results,
    right: Results,
    moved_results: Sequence[Results],
    differing: frozenset[tuple[Kind, str]],
    num_added: int,
    tolerance: float | None = None,
    precise: Results | None = None,
) -> Iterator[LeafCheck]:
    """Compare the results of a step.

    Args:
        step: its number, from 1.
        before: the state before it by path.
        got: what the compiled program computed, by kind and path.
        right: what one device computed.
        moved_results: what one device computed from moved numbers, each state with the move of its start taken off.
        differing: what devices that should hold the same hold different numbers of.
        num_added: how many numbers the compiled program adds up into one, in whatever order.
        tolerance: the share of the largest update that may differ; None for what rounding was seen to do.
        precise: what one device computed in float64; None if that was not asked for.
    """
    for key, value in right.items():
        if key not in got:  # gradients stay inside of a compiled program
            continue
        kind, path = key
        base = before.get(path) if kind == "state" else None
        others = [one[key] for one in moved_results]
        check = _compared(
            step, kind, path, got[key], value, base, others, num_added, tolerance, (precise or {}).get(key)
        )
        if key in differing:
            check = check.also("devices that should hold the same hold different numbers")
        yield check


def _compared(
    step: int,
    kind: Kind,
    path: str,
    got: np.ndarray,
    right: np.ndarray,
    base: np.ndarray | None,
    others: Sequence[np.ndarray],
    num_added: int,
    tolerance: float | None,
    precise: np.ndarray | None,
) -> LeafCheck:
    dtype = str(right.dtype)
    if got.shape != right.shape:
        return LeafCheck(
            step,
            kind,
            path,
            dtype,
            np.inf,
            np.inf,
            None,
            0,
            "shapes",
            fault=f"has shape {got.shape}, not {right.shape}",
        )
    if not jnp.issubdtype(right.dtype, jnp.inexact):
        return _whole_numbers(step, kind, path, got, right, base, others)
    start = np.zeros_like(right) if base is None or base.shape != right.shape else base
    got64, right64, start64 = (_wide(value) for value in (got, right, start))
    is_number = np.isfinite(right64)
    if not np.array_equal(np.isfinite(got64), is_number) or not is_number.all():
        return _with_infinities(step, kind, path, dtype, got64, right64)
    update = np.abs(right64 - start64)
    largest = float(update.max(initial=0))
    apart = np.abs(got64 - right64)
    noise = [np.abs(_wide(other) - right64) for other in others]
    eps = float(jnp.finfo(right.dtype).eps)
    digit = eps * float(np.abs(right64).max(initial=0))
    in_sums = eps * largest * math.sqrt(num_added) / 2
    noise = [np.maximum(one - _LAST_DIGIT * digit, 0) for one in noise]
    allowed = _FACTOR * max((float(one.max(initial=0)) for one in noise), default=0.0) + _DIGITS * digit + in_sums
    allowed_norm = _FACTOR_OF_NORM * max((float(np.linalg.norm(one)) for one in noise), default=0.0)
    allowed_norm += (_DIGITS * digit + in_sums) * np.sqrt(right64.size)
    reason = "what rounding in the compiled program's types does to this array, seen in moved numbers"
    if precise is not None:
        off = np.abs(right64 - _wide(precise))
        allowed += _EACH_AS_FAR * float(off.max(initial=0))
        allowed_norm += _EACH_AS_FAR * float(np.linalg.norm(off))
        reason += ", and in float64"
    if tolerance is not None:
        allowed, allowed_norm = tolerance * largest, tolerance * float(np.linalg.norm(update))
        reason = f"tolerance={tolerance:g}"
    worst, norm = float(apart.max(initial=0)), float(np.linalg.norm(apart))
    length = float(np.linalg.norm(right64 - start64))
    fault = doubt = ""
    if worst > allowed or norm > allowed_norm:
        num = int((apart > allowed).sum()) or int((apart > 0).sum())
        fault = (
            f"differs in {num:,} of {apart.size:,} entries, by up to {worst:.2g} where rounding explains {allowed:.2g}"
        )
    elif length and allowed_norm > _TOO_COARSE * length:
        doubt = "rounding alone moves it by about as much as the step does, so a fault would not show"
    ratio = float(np.linalg.norm(got64 - start64)) / length if length else None
    share = worst / largest if largest else 0.0
    return LeafCheck(
        step,
        kind,
        path,
        dtype,
        worst,
        share,
        ratio,
        allowed,
        reason,
        moved=largest > 0,
        fault=fault,
        doubt=doubt,
        is_settled_by_others=True,
    )


def _wide(value: np.ndarray) -> np.ndarray:
    return value.astype(np.complex128 if jnp.issubdtype(value.dtype, jnp.complexfloating) else np.float64)


def _whole_numbers(
    step: int,
    kind: Kind,
    path: str,
    got: np.ndarray,
    right: np.ndarray,
    base: np.ndarray | None,
    others: Sequence[np.ndarray],
) -> LeafCheck:
    is_apart = got != right
    may_differ = np.zeros(right.shape, bool)
    for other in others:
        may_differ |= other != right
    num = int(is_apart.sum())
    # A number that follows from rounded ones, such as a count of right answers, may jump as they do.
    fault = f"differs in {num:,} of {right.size:,} entries" if num and not may_differ.any() else ""
    doubt = "follows from rounded numbers, and jumps as they do" if num and may_differ.any() else ""
    apart = float(np.abs(got.astype(np.float64) - right.astype(np.float64)).max(initial=0))
    changed = bool(np.any(right != (0 if base is None else base)))
    return LeafCheck(
        step,
        kind,
        path,
        str(right.dtype),
        apart,
        0.0,
        None,
        0.0,
        "whole numbers: none",
        moved=changed,
        fault=fault,
        doubt=doubt,
        is_settled_by_others=True,
    )


def _with_infinities(step: int, kind: Kind, path: str, dtype: str, got: np.ndarray, right: np.ndarray) -> LeafCheck:
    num_got, num_right = (int((~np.isfinite(value)).sum()) for value in (got, right))
    if num_got != num_right:
        fault = f"{num_got:,} of {got.size:,} entries are not finite, where one device has {num_right:,}"
        return LeafCheck(step, kind, path, dtype, np.inf, np.inf, None, 0.0, "finite numbers", fault=fault)
    doubt = f"{num_right:,} of {right.size:,} entries are not finite on one device either, so a fault could hide"
    return LeafCheck(step, kind, path, dtype, np.nan, np.nan, None, 0.0, "finite numbers", doubt=doubt)
