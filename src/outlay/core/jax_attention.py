"""Calls of `jax.nn.dot_product_attention`, taken while a step is traced, also where a library has imported it.

Private JAX: the functions that it calls are replaced for the block, as modules may hold a reference to itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from jax._src.cudnn import fused_attention_stablehlo as cudnn
from jax._src.nn import functions

from outlay.core.attention_calls import AttentionCall, attended
from outlay.core.jax_kernels import replaced

NAME = "dot_product_attention"
_XLA, _CUDNN = "_dot_product_attention_xla", "cudnn_dot_product_attention"


@contextlib.contextmanager
def taking_calls() -> Iterator[None]:
    """Let a program compute the calls of `jax.nn.dot_product_attention` that are traced in the block."""
    by_xla, by_cudnn = getattr(functions, _XLA), getattr(functions, _CUDNN)

    def xla(query: Any, key: Any, value: Any, bias: Any, mask: Any, **options: Any) -> Any:
        lengths = options["q_seqlen"], options["kv_seqlen"]
        of = _call(query, key, value, (bias, mask, *lengths), options["is_causal"], options["local_window_size"])
        return _taken(of(options), lambda: by_xla(query, key, value, bias, mask, **options))

    def fused(
        query: Any, key: Any, value: Any, bias: Any = None, mask: Any = None, *lengths: Any, **options: Any
    ) -> Any:
        is_causal = options["mask_type"] in (cudnn.MaskType.CAUSAL, cudnn.MaskType.PADDING_CAUSAL)
        window = options["sliding_window_length"]
        local = None if window is None else (window - 1, 0)
        of = _call(query, key, value, (bias, mask, *lengths), is_causal, local)
        return _taken(of(options), lambda: by_cudnn(query, key, value, bias, mask, *lengths, **options))

    with replaced(functions, **{_XLA: xla, _CUDNN: fused}):
        yield


def _taken(call: AttentionCall, own: Callable[[], Any]) -> Any:
    outputs = attended(call)
    return own() if outputs is None else outputs


def _call(
    query: Any, key: Any, value: Any, others: tuple[Any, ...], is_causal: bool, local: tuple[int, int] | None
) -> Callable[[dict[str, Any]], AttentionCall]:
    names = ("a bias", "a mask", "query_seq_lengths", "key_value_seq_lengths")
    given = [name for name, one in zip(names, others, strict=False) if one is not None]
    window = None if local is None else int(local[0]) + 1
    if local is not None and local[1] and not is_causal:
        given.append(f"local_window_size={local} without is_causal")

    def of(options: dict[str, Any]) -> AttentionCall:
        extra = ["return_residual"] if options.get("return_residual") else []
        causal = is_causal or window is not None
        return AttentionCall(NAME, query, key, value, causal, window, None, float(options["scale"]), (*given, *extra))

    return of
