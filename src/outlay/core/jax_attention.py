"""Calls of `jax.nn.dot_product_attention`, taken while a step is traced, also where a library has imported it.

Private JAX: the functions that it calls are replaced for the block, as modules may hold a reference to itself.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from jax._src.nn import functions

from outlay.core.attention_calls import AttentionCall, attended
from outlay.core.jax_kernels import replaced
from outlay.core.library_attention import taking_modules

NAME = "dot_product_attention"
_XLA, _CUDNN = "_dot_product_attention_xla", "cudnn_dot_product_attention"


@contextlib.contextmanager
def taking_calls() -> Iterator[None]:
    """Let a program compute the calls of `jax.nn.dot_product_attention`, and of libraries, that the block traces."""
    by_xla, by_cudnn = getattr(functions, _XLA), getattr(functions, _CUDNN)

    def xla(query: Any, key: Any, value: Any, bias: Any, mask: Any, **options: Any) -> Any:
        lengths = options["q_seqlen"], options["kv_seqlen"]
        call = _Given(query, key, value, bias, mask, lengths, options["is_causal"], options["local_window_size"])
        return call.taken(options, lambda: by_xla(query, key, value, bias, mask, **options))

    def fused(
        query: Any, key: Any, value: Any, bias: Any, mask: Any, q_seqlen: Any, kv_seqlen: Any, **options: Any
    ) -> Any:
        is_causal = options["mask_type"] in (cudnn.MaskType.CAUSAL, cudnn.MaskType.PADDING_CAUSAL)
        window = options["sliding_window_length"]
        local = None if window is None else (window - 1, 0)
        call = _Given(query, key, value, bias, mask, (q_seqlen, kv_seqlen), is_causal, local)
        return call.taken(options, lambda: by_cudnn(query, key, value, bias, mask, q_seqlen, kv_seqlen, **options))

    with replaced(functions, **{_XLA: xla, _CUDNN: fused}), taking_modules():
        yield


@dataclass(frozen=True)
class _Given:
    """What JAX's function was given, with 4 dims each; `lengths` and `local` are of queries and of keys."""

    query: Any
    key: Any
    value: Any
    bias: Any
    mask: Any
    lengths: tuple[Any, Any]
    is_causal: bool
    local: tuple[int, int] | None

    def taken(self, options: dict[str, Any], own: Callable[[], Any]) -> Any:
        """Return the outputs as a program computes them; else as the function itself does."""
        extra = ("return_residual",) if options.get("return_residual") else ()
        outputs = attended(self._call(float(options["scale"]), extra))
        if outputs is None:
            return own()
        if self.lengths[0] is None:
            return outputs
        return outputs * self._is_within(0)[:, :, None, None].astype(outputs.dtype)

    def _call(self, scale: float, not_split: tuple[str, ...]) -> AttentionCall:
        terms = [x for x in (self.bias, self.mask) if x is not None]
        if self.lengths[0] is not None:
            terms.append(self._is_within(0)[:, None, :, None])
        if self.lengths[1] is not None:
            terms.append(self._is_within(1)[:, None, None, :])
        causal, window = self.is_causal, None
        is_behind_only = self.local is not None and (self.is_causal or self.local[1] == 0)
        if self.query.shape[1] != self.key.shape[1] or (self.local is not None and not is_behind_only):
            terms += self._by_positions()
            causal = False
        elif self.local is not None:
            causal, window = True, int(self.local[0]) + 1
        return AttentionCall(
            NAME, self.query, self.key, self.value, causal, window, None, scale, tuple(terms), not_split
        )

    def _is_within(self, which: int) -> Any:
        """Return whether a token of the queries, or of the keys, is within its sample's length: (B, tokens)."""
        num_tokens = (self.query, self.key)[which].shape[1]
        return jnp.arange(num_tokens)[None] < self.lengths[which][:, None]

    def _by_positions(self) -> list[Any]:
        """Return as a mask, each device its own rows, what only tokens of one sequence say by their order."""
        queries, keys = (jnp.arange(x.shape[1]) for x in (self.query, self.key))
        ahead = keys[None] - queries[:, None]
        seen = [ahead <= 0] if self.is_causal else []
        if self.local is not None:
            seen += [-ahead <= self.local[0], ahead <= self.local[1]]
        return [functools.reduce(jnp.logical_and, seen)[None, None]] if seen else []
