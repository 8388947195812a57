"""Check what a mixture of experts is given: shapes, numbers, and what one expert returns."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, get_args

import jax
import jax.numpy as jnp

from outlay.core.error_types import ProgramError
from outlay.core.paths import flatten_paths
from outlay.core.suggest import did_you_mean
from outlay.models.equal_blocks import is_stacked
from outlay.models.experts.blocks import without_settings
from outlay.models.experts.routing import Gates
from outlay.models.experts.slots import capacity_of


def check_experts(
    expert: Any,
    params: Any,
    x: Any,
    router: Any,
    top_k: int,
    gates: str,
    bias: Any,
    capacity_factor: float | None,
    *,
    max_dropped: float | None,
    groups: int | None,
) -> int:
    """Return the number of experts; see `outlay.experts` for what it is given.

    Raises:
        ProgramError: with all problems.
    """
    if kinds := list(_of_kinds(expert, x, router, bias)):
        raise ProgramError("\n  ".join(["experts cannot be run:", *kinds]))
    problems = list(_of_shapes(params, x, router, bias))
    num_experts = router.shape[-1] if router.ndim else 0
    if not problems:
        problems += _of_numbers(x, num_experts, top_k, capacity_factor, max_dropped, groups)
        if gates not in get_args(Gates):
            problems.append(f"there are no gates {gates!r}: {did_you_mean(gates, get_args(Gates))}")
        problems += _of_results(expert, params, x)
    if problems:
        raise ProgramError(
            "\n  ".join([f"experts cannot take tokens {x.shape} with logits {router.shape}:", *problems])
        )
    return num_experts


def _of_kinds(expert: Any, x: Any, router: Any, bias: Any) -> Iterator[str]:
    if not callable(expert):
        yield (
            f"the first argument is the function of one expert, and this is {_kind(expert)}: "
            "outlay.experts(expert, params, x, x @ kernel)"
        )
    if not is_stacked(x):
        yield f"x is {_kind(x)}: give the tokens, an array (…, T, D)"
    if not is_stacked(router):
        yield f"router is {_kind(router)}: give the logits of each token, such as x @ kernel or model.router(x)"
    if bias is not None and not is_stacked(bias):
        yield f"bias is {_kind(bias)}: give an array, one number for each expert"


def _kind(value: Any) -> str:
    return f"a {type(value).__name__}"


def _of_shapes(params: Any, x: Any, router: Any, bias: Any) -> Iterator[str]:
    if x.ndim < 2:
        yield f"tokens are (…, T, D), and these have {x.ndim} dims: x[None] is one token"
        return
    if x.ndim and router.ndim == 2 and router.shape[0] == x.shape[-1] != x.shape[-2]:
        yield f"router is a kernel {router.shape}, not the logits of each token: pass x @ router"
    elif router.shape[:-1] != x.shape[:-1]:
        yield f"router is {router.shape}: make it the logits of each token, {x.shape[:-1]} and then the experts"
    num_experts = router.shape[-1] if router.ndim else 0
    stacks = [(path, leaf) for path, leaf in flatten_paths(params)[0] if is_stacked(leaf)]
    if not stacks:
        yield "params holds no array: give a tree of stacks, one entry of dim 0 for each expert"
    wrong = [(path, stack) for path, stack in stacks if not stack.ndim or stack.shape[0] != num_experts]
    if wrong and isinstance(params, Sequence) and len(params) == num_experts:
        yield (
            f"params is a list of {num_experts} experts: stack them, "
            "jax.tree.map(lambda *leaves: jnp.stack(leaves), *params), best where they are made, by jax.vmap"
        )
        return
    for path, stack in wrong:
        where = f"params.{path}" if path else "params"
        yield (
            f"{where} is {stack.shape}, and the router chooses among {num_experts} experts: "
            f"make its dim 0 {num_experts}, or the last dim of router {stack.shape[0] if stack.ndim else 1}"
        )
    if bias is not None and bias.shape != (num_experts,):
        yield f"bias is {bias.shape}: make it ({num_experts},), one number for each expert"


def _of_numbers(
    x: Any, num_experts: int, top_k: int, factor: float | None, max_dropped: float | None, groups: int | None
) -> Iterator[str]:
    is_possible = type(top_k) is int and 1 <= top_k <= num_experts
    if not is_possible:
        yield f"top_k={top_k!r}: a token chooses from 1 to all {num_experts} experts"
    num_tokens = math.prod(x.shape[:-1])
    num_groups = math.prod(x.shape[:-2]) if groups is None else groups
    if type(num_groups) is not int or num_groups < 1 or num_tokens % num_groups:
        yield f"groups={groups!r} does not divide {num_tokens} tokens: take a divisor"
        return
    if factor is not None and not factor > 0:
        yield f"capacity_factor={factor!r}: make it more than 0, 1.25 for example, or None for no limit"
        return
    if max_dropped is None:
        return
    if factor is None or not 0 <= max_dropped < 1:
        yield f"max_dropped={max_dropped!r} is a share from 0 to 1 of what a capacity drops: give capacity_factor too"
    elif is_possible:
        each = num_tokens // num_groups
        capacity = capacity_of(factor, each, top_k, num_experts)
        least = 1 - min(num_experts * capacity / (each * top_k), 1.0)
        if least > max_dropped:
            yield (
                f"capacity_factor={factor} gives {num_experts} experts {capacity} of {each} tokens each, so at least "
                f"{100 * least:.1f} % of {each * top_k} choices are dropped, more than max_dropped={max_dropped}: "
                f"make capacity_factor {1 - max_dropped:.3g} or more"
            )


def _of_results(expert: Any, params: Any, x: Any) -> Iterator[str]:
    of_stacks, stacks = without_settings(expert, params)
    one = [jax.ShapeDtypeStruct(stack.shape[1:], stack.dtype) for stack in stacks]
    tokens = jax.ShapeDtypeStruct((8, x.shape[-1]), x.dtype)
    result = jax.eval_shape(of_stacks, one, tokens)
    shape = getattr(result, "shape", None)
    if shape is None or len(shape) != 2 or shape[0] != 8 or not jnp.issubdtype(result.dtype, jnp.inexact):
        what = f"of shape {shape}, {result.dtype}" if shape is not None else f"a {type(result).__name__}"
        yield f"an expert maps tokens (N, {x.shape[-1]}) to results (N, …) of floats, and this returns {what} for N = 8"
