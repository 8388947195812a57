"""Optimizer state in another dtype than the parameters: low-precision moments, or float32 master weights."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax


class KeptState(NamedTuple):
    """The state of `state_in`.

    Attributes:
        master: the parameters in the state dtype if their own dtype is narrower; otherwise None.
        inner: the wrapped optimizer's state.
    """

    master: Any
    inner: Any


def state_in(optimizer: optax.GradientTransformation, dtype: Any) -> optax.GradientTransformation:
    """Wrap an optimizer so that it stores its state in `dtype`, whatever the dtype of the parameters.

    If the parameters are narrower, the state also holds master copies of them, which receive the updates: updates too
    small to change a bfloat16 number accumulate there. Source: Micikevicius et al. (2018), arXiv:1710.03740, section
    3.1. The arithmetic is float32 or wider.

    Args:
        optimizer: any optax optimizer.
        dtype: a float dtype.

    Example:
        >>> adam = state_in(optax.adam(1e-3), "bfloat16")
        >>> adam.init({"w": jnp.ones(2)}).inner[0].nu["w"].dtype
        dtype(bfloat16)
        >>> precise = state_in(optax.adam(1e-3), "float32")
        >>> precise.init({"w": jnp.ones(2, jnp.bfloat16)}).master["w"].dtype
        dtype('float32')
    """
    inner, state_dtype = optax.with_extra_args_support(optimizer), jnp.dtype(dtype)

    def needs_master(params: Any) -> bool:
        return any(jnp.dtype(p.dtype).itemsize < state_dtype.itemsize for p in jax.tree.leaves(params))

    def init(params: Any) -> KeptState:
        master = _floats_as(params, state_dtype) if needs_master(params) else None
        return KeptState(master, _floats_as(inner.init(_floats_as(params, state_dtype)), state_dtype))

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        exact = _widened(params if state.master is None else state.master)
        updates, inner_state = inner.update(_widened(updates), _widened(state.inner), exact, **extra)
        kept_state = _floats_as(inner_state, state_dtype)
        if state.master is None:
            return updates, KeptState(None, kept_state)
        master = jax.tree.map(lambda p, u: (p + u).astype(state_dtype), exact, updates)
        # Return a difference, because optax adds updates: the parameters become the rounded master copies.
        updates = jax.tree.map(lambda m, p: m.astype(jnp.float32) - p.astype(jnp.float32), master, params)
        return updates, KeptState(master, kept_state)

    return optax.GradientTransformationExtraArgs(init, update)


def _widened(tree: Any) -> Any:
    return jax.tree.map(lambda x: x.astype(jnp.promote_types(x.dtype, jnp.float32)) if _is_float(x) else x, tree)


def _floats_as(tree: Any, dtype: Any) -> Any:
    return jax.tree.map(lambda x: x.astype(dtype) if _is_float(x) else x, tree)


def _is_float(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)
