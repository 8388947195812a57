"""`outlay.attention`: by the fused kernel of the hardware that a program is compiled for, else block by block."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from outlay.core import jax_kernels
from outlay.core.errors import ProgramError
from outlay.models.attention.blockwise import Mask, blockwise

HALF = (jnp.bfloat16, jnp.float16)


def attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    causal: bool = False,
    window: int | None = None,
    segment_ids: jax.Array | None = None,
    scale: float | None = None,
) -> jax.Array:
    """Attention that never writes its scores to memory: what it takes grows with the sequence, not with its square.

    Compiled for an NVIDIA GPU it is cuDNN's fused kernel, where that can do what is asked, on hardware that is not here
    too. Everywhere else it goes block by block (online softmax), in plain JAX, with the same numbers up to rounding;
    blocks that a mask hides wholly cost nothing. Batch and heads may be split over devices in every mode; the sequence
    is taken whole. Scores and their softmax are float32. It has gradients of first order, backward.

    Args:
        query: (B, T, heads, head_dim).
        key: (B, S, kv_heads, head_dim); each head serves `heads / kv_heads` query heads, as in Ainslie et al., GQA
            (arXiv:2305.13245).
        value: as `key`.
        causal: a query sees no key after itself.
        window: a query sees this many keys, itself and those before it; goes with `causal`.
        segment_ids: integers (B, T): a query sees keys of its own segment only, for several texts in one sequence.
        scale: what scores are multiplied by; `1 / sqrt(head_dim)` if None.

    Returns:
        (B, T, heads, head_dim), of the query's dtype.

    Raises:
        ProgramError: shapes or options do not fit together; all that do not are listed.

    Example:
        >>> query, key = jnp.zeros((1, 3, 2, 4)), jnp.zeros((1, 3, 1, 4))
        >>> value = jnp.arange(3.0)[None, :, None, None] * jnp.ones((1, 3, 1, 4))
        >>> outlay.attention(query, key, value, causal=True)[0, :, 0, 0].tolist()
        [0.0, 0.5, 1.0]
    """
    _refuse_misfits(query, key, value, causal, window, segment_ids)
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    mask = Mask(causal, None if window is None or window >= query.shape[1] else window)
    device = jax_kernels.compiled_for()
    with jax.named_scope("attention"):
        if no_kernel_because(device, query, segment_ids) is None:
            return _fused(query, key, value, mask, factor)
        segments = None if segment_ids is None else (segment_ids, segment_ids)
        return blockwise(query, key, value, segments, mask, factor)


def no_kernel_because(device: jax.Device, query: Any, segment_ids: Any) -> str | None:
    """Why a device has no fused kernel for what is asked of it; None where it has.

    Args:
        device: what the program is compiled for.
        query: the queries, or their shape and dtype.
        segment_ids: as for `attention`.
    """
    capability, dim = jax_kernels.compute_capability(device), query.shape[-1]
    if capability is None:
        return f"there is none for {device.platform}"
    if capability < (8, 0):
        return f"cuDNN's takes compute capability 8.0 or higher, and this GPU has {capability[0]}.{capability[1]}"
    if query.dtype not in HALF:
        return f"cuDNN's takes bfloat16 or float16, and this is {query.dtype}"
    largest = 256 if capability >= (9, 0) else 128
    if dim > largest or dim % 8:
        return f"cuDNN's takes a head_dim of at most {largest} that 8 divides, and this is {dim}"
    if segment_ids is not None:
        return "cuDNN's knows no segment_ids"
    return None


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _fused(query: jax.Array, key: jax.Array, value: jax.Array, mask: Mask, scale: float) -> jax.Array:
    return _fused_forward(query, key, value, mask, scale)[0]


def _fused_forward(
    query: jax.Array, key: jax.Array, value: jax.Array, mask: Mask, scale: float
) -> tuple[jax.Array, Any]:
    kernel = functools.partial(jax_kernels.cudnn_attention, causal=mask.causal, window=mask.window, scale=scale)
    with jax_kernels.answering_for(jax_kernels.compiled_for()):
        mixed, pull = jax.vjp(kernel, query, key, value)
    # What it keeps beside its inputs can be asked for by name, as that of the other way.
    kept = jax.tree.map(
        lambda x: x if any(x is given for given in (query, key, value)) else checkpoint_name(x, "attention"), pull
    )
    return mixed, kept


def _fused_backward(mask: Mask, scale: float, pull: Any, grad: jax.Array) -> tuple[jax.Array, ...]:
    with jax_kernels.answering_for(jax_kernels.compiled_for()):
        return pull(grad)


_fused.defvjp(_fused_forward, _fused_backward)


def _refuse_misfits(query: Any, key: Any, value: Any, causal: bool, window: int | None, segment_ids: Any) -> None:
    problems = []
    if not query.ndim == key.ndim == value.ndim == 4:
        problems.append("query, key and value are (batch, sequence, heads, head_dim), 4 dims each")
    else:
        if key.shape != value.shape:
            problems.append("value is to have the shape of key")
        if (query.shape[0], query.shape[3]) != (key.shape[0], key.shape[3]):
            problems.append("query and key are to have the same batch and the same head_dim")
        if query.shape[2] % key.shape[2]:
            problems.append(
                f"{query.shape[2]} query heads cannot share {key.shape[2]} key heads evenly: make one a multiple"
            )
        if (causal or segment_ids is not None) and query.shape[1] != key.shape[1]:
            problems.append("causal, window and segment_ids are for queries and keys of one sequence, of one length")
    if len({x.dtype for x in (query, key, value)}) > 1:
        problems.append(f"query is {query.dtype}, key {key.dtype} and value {value.dtype}: cast them to one dtype")
    if window is not None and (window < 1 or not causal):
        problems.append(f"window={window} is to be 1 or more, and goes with causal=True")
    if segment_ids is not None and segment_ids.shape != query.shape[:2]:
        problems.append(
            f"segment_ids are (batch, sequence) as the query is, {query.shape[:2]}, not {segment_ids.shape}"
        )
    if problems:
        shapes = f"query {query.shape}, key {key.shape}, value {value.shape}"
        raise ProgramError("\n  ".join([f"attention cannot be computed of {shapes}:", *problems]))
