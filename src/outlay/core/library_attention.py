"""Attention in modules of Flax Linen and Equinox, which compute it themselves, taken while a step is traced.

Flax NNX calls JAX's function, as long as its module drops nothing out.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp

from outlay.core.attention_calls import AttentionCall, attended
from outlay.core.jax_kernels import replaced

NAME = "dot_product_attention"
"""What both libraries call their function; JAX does, too."""


@contextlib.contextmanager
def taking_modules() -> Iterator[None]:
    """Let a program compute the attention of modules that are traced in the block, of libraries that are imported."""
    linen, equinox = sys.modules.get("flax.linen"), sys.modules.get("equinox.nn._attention")
    with contextlib.ExitStack() as stack:
        if linen is not None:
            stack.enter_context(linen.intercept_methods(functools.partial(_of_linen, linen)))
        if equinox is not None:
            taken = functools.partial(_of_equinox, equinox.dot_product_attention)
            stack.enter_context(replaced(equinox, dot_product_attention=taken))
        yield


def _of_linen(linen: Any, method: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
    """Run a method of a Linen module; that of attention with a function that offers its call to the program."""
    module, own = context.module, linen.dot_product_attention
    is_attention = isinstance(module, linen.MultiHeadDotProductAttention) and context.method_name == "__call__"
    if not is_attention or module.attention_fn is not own:
        return method(*args, **kwargs)

    @functools.wraps(own)  # Linen leaves out what a function's signature lacks
    def attention(query: Any, key: Any, value: Any, bias: Any = None, mask: Any = None, **options: Any) -> Any:
        is_dropped = options.get("dropout_rate", 0.0) > 0 and not options.get("deterministic", False)
        others = {"module": "sow_weights", "qk_attn_weights_einsum": "an einsum", "einsum_dot_general": "a product"}
        not_split = [*(["dropout"] if is_dropped else []), *(what for one, what in others.items() if options.get(one))]
        terms = bias, mask if mask is None else mask.astype(bool)
        outputs = _attended(query, key, value, terms, not_split)
        return own(query, key, value, bias, mask, **options) if outputs is None else outputs

    object.__setattr__(module, "attention_fn", attention)  # modules are frozen
    try:
        return method(*args, **kwargs)
    finally:
        object.__setattr__(module, "attention_fn", own)


def _of_equinox(
    own: Callable[..., Any], query: Any, key_: Any, value: Any, mask: Any = None, dropout: Any = None, **options: Any
) -> Any:
    """Compute one head (T, head_dim); Equinox maps over heads."""
    inference = options.get("inference")
    is_dropped = dropout is not None and dropout.p != 0 and not (dropout.inference if inference is None else inference)
    not_split = ["dropout"] if is_dropped else []
    outputs = _attended(query[:, None], key_[:, None], value[:, None], (mask,), not_split)
    return own(query, key_, value, mask, dropout, **options) if outputs is None else outputs[:, 0]


def _attended(query: Any, key: Any, value: Any, terms: tuple[Any, ...], not_split: list[str]) -> Any:
    """Offer a call with any dims before (tokens, heads, head_dim) to the program; None if it does not take it."""
    if value.shape != key.shape or len({x.dtype for x in (query, key, value)}) > 1:
        not_split = [*not_split, "values of another size or dtype than its keys"]
    q, k, v = (x.reshape(-1, *x.shape[-3:]) for x in (query, key, value))
    scale = 1 / math.sqrt(query.shape[-1])
    given = tuple(_of_four_dims(x, query.shape[:-3]) for x in terms if x is not None)
    outputs = attended(AttentionCall(NAME, q, k, v, False, None, None, scale, given, tuple(not_split)))
    return None if outputs is None else outputs.reshape(query.shape)


def _of_four_dims(term: Any, batch: tuple[int, ...]) -> Any:
    """Reshape a mask or bias to (B or 1, heads or 1, T or 1, S or 1)."""
    term = term.reshape((1,) * (3 + len(batch) - term.ndim) + term.shape)
    if len(batch) > 1 and 1 < math.prod(term.shape[:-3]) < math.prod(batch):
        term = jnp.broadcast_to(term, (*batch, *term.shape[-3:]))
    return term.reshape(-1, *term.shape[-3:])
