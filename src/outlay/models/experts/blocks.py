"""Experts block by block: each block of tokens goes through its expert, at the cost of the tokens that there are.

One loop runs over the blocks. The parameters of an expert are read where they lie. The backward pass runs over the same
blocks, recomputes what the expert computed, and adds to the gradient of one expert alone; left to itself, JAX would add
up gradients of all experts for each block.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from outlay.core.jax_tracing import varying_axes
from outlay.models.equal_blocks import is_stacked

Expert = Callable[[Any, jax.Array], jax.Array]
"""`expert(params of one expert, tokens (N, D)) -> (N, D')`, each token by itself."""


def without_settings(expert: Expert, params: Any) -> tuple[Expert, list[jax.Array]]:
    """Return an expert that takes a list of arrays alone, and the stacks of these.

    What else a tree holds, as an Equinox module its activation, is the same for all experts.
    """
    leaves, structure = jax.tree.flatten(params)
    stacks = [leaf for leaf in leaves if is_stacked(leaf)]

    def of_stacks(own: Any, tokens: jax.Array) -> jax.Array:
        arrays = iter(own)
        return expert(structure.unflatten([next(arrays) if is_stacked(leaf) else leaf for leaf in leaves]), tokens)

    return of_stacks, stacks


def by_blocks(expert: Expert, params: Any, blocks: jax.Array, experts: jax.Array) -> jax.Array:
    """Run each block through its expert.

    Args:
        expert: the function of one expert.
        params: a tree of stacks (E, …).
        blocks: (num_blocks, slots, D).
        experts: the expert of each block, (num_blocks,).

    Returns:
        (num_blocks, slots, D').
    """
    one = jax.tree.map(lambda stack: stack[0], params)
    # What the function closes over, such as keys or shared parameters, has gradients too.
    converted, closed_over = jax.closure_convert(expert, one, blocks[0])
    leaves, structure = jax.tree.flatten(params)
    is_trained = [jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in leaves]

    def of_leaves(trained: list[Any], fixed: list[Any], block: Any, closed_over: Any) -> Any:
        both = {True: iter(trained), False: iter(fixed)}
        return converted(structure.unflatten([next(both[each]) for each in is_trained]), block, *closed_over)

    trained = [leaf for leaf, each in zip(leaves, is_trained, strict=True) if each]
    fixed = [leaf for leaf, each in zip(leaves, is_trained, strict=True) if not each]
    return _mapped(of_leaves, trained, fixed, list(closed_over), blocks, experts)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _mapped(
    expert: Callable[..., Any], trained: Any, fixed: Any, closed_over: Any, blocks: jax.Array, experts: jax.Array
) -> jax.Array:
    def run(_: None, at: Any) -> tuple[None, Any]:
        block, number = at
        return None, expert(_of(trained, number), _of(fixed, number), block, closed_over)

    return jax.lax.scan(run, None, (blocks, experts))[1]


def _forward(expert: Callable[..., Any], *args: Any) -> tuple[jax.Array, Any]:
    return _mapped(expert, *args), args


def _backward(expert: Callable[..., Any], args: Any, cotangents: jax.Array) -> tuple[Any, ...]:
    trained, fixed, closed_over, blocks, experts = args

    def add(sums: Any, at: Any) -> tuple[Any, Any]:
        block, number, cotangent = at

        def run(one: Any, closed_over: Any, block: Any) -> Any:
            return expert(one, _of(fixed, number), block, closed_over)

        of_one, of_closed, of_block = jax.vjp(run, _of(trained, number), closed_over, block)[1](cotangent)
        so_far, so_far_closed = sums
        so_far = [total.at[number].add(x.astype(total.dtype)) for total, x in zip(so_far, of_one, strict=True)]
        so_far_closed = [total + x.astype(total.dtype) for total, x in zip(so_far_closed, of_closed, strict=True)]
        return (so_far, so_far_closed), of_block

    axes = tuple(varying_axes(blocks) | varying_axes(cotangents))
    start = [[_zeros(x, axes) for x in of] for of in (trained, closed_over)]
    (of_trained, of_closed), of_blocks = jax.lax.scan(add, tuple(start), (blocks, experts, cotangents))
    return _as(of_trained, trained), None, _as(of_closed, closed_over), of_blocks, None


_mapped.defvjp(_forward, _backward)


def _of(stacks: list[Any], number: jax.Array) -> list[Any]:
    """Return what one expert has of each stack."""
    return [jax.lax.dynamic_index_in_dim(stack, number, keepdims=False) for stack in stacks]


def _zeros(like: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """Return zeros for a sum, in float32 or wider; in `jax.shard_map`, as each device's own."""
    zeros = jnp.zeros(like.shape, jnp.promote_types(like.dtype, jnp.float32))
    return jax.lax.pcast(zeros, axes, to="varying") if axes else zeros


def _as(sums: list[Any], like: list[Any]) -> list[Any]:
    return [x.astype(one.dtype) for x, one in zip(sums, like, strict=True)]
