"""Attention with the fused kernel of the hardware that a program is compiled for, or block by block."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec

from outlay.core import jax_kernels
from outlay.core.attention_calls import AttentionCall, attended, current_attend
from outlay.core.error_types import ProgramError
from outlay.core.jax_compat import compiled_for
from outlay.models.attention.blockwise import Mask, blockwise
from outlay.models.attention.kernel_rules import num_pieces, refusal, split_by_layout


def attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    causal: bool = False,
    window: int | None = None,
    segment_ids: jax.Array | None = None,
    scale: float | None = None,
    split: PartitionSpec | None = None,
) -> jax.Array:
    """Compute attention without writing the scores to memory: memory is linear in the sequence length.

    Compiled for an NVIDIA GPU, it is cuDNN's fused kernel; for a TPU, JAX's Pallas kernel; also if the hardware is only
    a target. Where those do not support the arguments, and on all other hardware, it runs block by block (online
    softmax) in plain JAX, with the same numbers up to rounding; fully masked blocks cost nothing. Batch and heads may
    be split over devices in every mode, the sequence by a rule with `outlay.layout.context`. Scores and their softmax
    are float32. Only first-order reverse-mode gradients are defined. If a GPU or TPU gets no kernel, a warning and
    `outlay.explain` say why.

    Args:
        query: (B, T, heads, head_dim).
        key: (B, S, kv_heads, head_dim); each head serves `heads / kv_heads` query heads, as in Ainslie et al., GQA
            (arXiv:2305.13245).
        value: like `key`.
        causal: a query attends to no key after itself.
        window: a query attends to this many keys, itself included; requires `causal`.
        segment_ids: integers (B, T): a query attends only to keys of its own segment, for several texts in a sequence.
        scale: the factor of the scores; None for `1 / sqrt(head_dim)`.
        split: how batch, sequence and heads are split over the mesh, such as `P("data", None, "model")`. The compiler
            cannot partition the TPU kernel. By default, the batch is split there as the layout splits the step's batch,
            and heads over all other axes; where these do not divide it runs block by block.

    Returns:
        (B, T, heads, head_dim) in the query's dtype.

    Raises:
        ProgramError: shapes or options do not fit together; the message lists all problems.

    Example:
        >>> query, key = jnp.zeros((1, 3, 2, 4)), jnp.zeros((1, 3, 1, 4))
        >>> value = jnp.arange(3.0)[None, :, None, None] * jnp.ones((1, 3, 1, 4))
        >>> outlay.attention(query, key, value, causal=True)[0, :, 0, 0].tolist()
        [0.0, 0.5, 1.0]
    """
    _check_arguments(query, key, value, causal, window, segment_ids)
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    if current_attend.get() is not None:
        call = AttentionCall("attention", query, key, value, causal, window, segment_ids, factor)
        if (by_program := attended(call)) is not None:
            return by_program
    mask = Mask(causal, None if window is None or window >= query.shape[1] else window)
    # Decide while tracing: jax.lax.platform_dependent would trace every implementation for every program, and all tools
    # that read traced programs would see all of them (decision 22).
    device, segments = compiled_for(), None if segment_ids is None else (segment_ids, segment_ids)
    if device.platform == "cpu":  # which has no kernel
        with jax.named_scope("attention"):
            return blockwise(query, key, value, segments, mask, factor)
    if split is None and device.platform == "tpu":
        by_layout = split_by_layout()
        if by_layout is not None and refusal(device, query, key, segment_ids, by_layout) is None:
            split = by_layout
    no_kernel = refusal(device, query, key, segment_ids, split)
    if no_kernel is not None:
        jax_kernels.warn_of_missed_kernel(f"attention runs block by block on {device.device_kind}: {no_kernel.why}")
    with jax.named_scope("attention"):
        if no_kernel is None:
            kernel = _Kernel(mask, factor, split, key.shape[1])
            mixed: jax.Array = _fused(*kernel.operands(query, key, value), segment_ids, kernel)
            return jnp.swapaxes(mixed, 1, 2) if device.platform == "tpu" else mixed[..., : query.shape[-1]]
        with jax.named_scope(no_kernel.scope):
            return blockwise(query, key, value, segments, mask, factor)


def _filled_up(heads: jax.Array) -> jax.Array:
    """Pad head_dim with zeros to a multiple of 8, as cuDNN requires; zeros change no score."""
    missing = -heads.shape[-1] % 8
    return jnp.pad(heads, ((0, 0),) * 3 + ((0, missing),)) if missing else heads


@dataclass(frozen=True)
class _Kernel:
    """A fused kernel, and how it is called."""

    mask: Mask
    scale: float
    split: PartitionSpec | None
    num_keys: int

    def operands(self, query: jax.Array, key: jax.Array, value: jax.Array) -> Iterator[jax.Array]:
        """Return queries, keys and values as the kernel takes them, which is what it keeps for its backward pass.

        The TPU's takes no scale, and heads before tokens. If it were given queries as they are, it would keep a copy of
        its own, beside what a remat policy saves.
        """
        if compiled_for().platform == "tpu":
            return (jnp.swapaxes(x, 1, 2) for x in (query * self.scale, key, value))
        return map(_filled_up, (query, key, value))

    def __call__(self, query: jax.Array, key: jax.Array, value: jax.Array, segment_ids: jax.Array | None) -> jax.Array:
        how = {"causal": self.mask.causal, "window": self.mask.window}
        if compiled_for().platform != "tpu":
            return jax_kernels.cudnn_attention(query, key, value, **how, scale=self.scale)
        own = functools.partial(jax_kernels.splash_attention, **how)
        given = [query, key, value, *([] if segment_ids is None else [segment_ids])]
        if self.split is None or not any(self.split):
            return own(*given)
        # The compiler cannot partition a Pallas kernel, and compile-only TPUs lack the callbacks of custom_partitioning
        # (decision 22), hence shard_map. check_vma is off: the types of a Pallas kernel do not say over which axes its
        # outputs vary.
        batch, tokens, heads = (*self.split, None, None)[:3]
        heads_first = PartitionSpec(batch, heads, tokens)
        specs = (heads_first, heads_first, heads_first, PartitionSpec(batch, tokens))[: len(given)]
        inside = jax.sharding.get_abstract_mesh()
        axes = {axis for axis in inside.axis_names if axis not in inside.manual_axes}
        return jax.shard_map(own, in_specs=specs, out_specs=heads_first, axis_names=axes, check_vma=False)(*given)

    def traced(self, shape: tuple[int, ...]) -> contextlib.AbstractContextManager[None]:
        """Return the context in which to trace the kernel, forward and backward, for queries of a shape."""
        device = compiled_for()
        if device.platform != "tpu":
            return jax_kernels.as_if_attached(device)
        heads = shape[1] // num_pieces(self.split, 2)
        seen = heads * self.mask.num_seen(shape[2], self.num_keys)
        return jax_kernels.with_cost_estimate(2 * seen * shape[3], seen)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _fused(
    query: jax.Array, key: jax.Array, value: jax.Array, segment_ids: jax.Array | None, kernel: _Kernel
) -> jax.Array:
    return _fused_forward(query, key, value, segment_ids, kernel)[0]


def _fused_forward(
    query: jax.Array, key: jax.Array, value: jax.Array, segment_ids: jax.Array | None, kernel: _Kernel
) -> tuple[jax.Array, Any]:
    with kernel.traced(query.shape):
        mixed, pull = jax.vjp(lambda q, k, v: kernel(q, k, v, segment_ids), query, key, value)
    # Name the residuals, so that remat policies and layouts can refer to them, as in blockwise attention.
    given = (query, key, value, segment_ids)
    pull_back = jax.tree.map(lambda x: x if any(x is one for one in given) else checkpoint_name(x, "attention"), pull)
    return mixed, pull_back


def _fused_backward(kernel: _Kernel, pull_back: Any, grad: jax.Array) -> tuple[jax.Array | None, ...]:
    with kernel.traced(grad.shape):
        return *pull_back(grad), None


_fused.defvjp(_fused_forward, _fused_backward)


def _check_arguments(query: Any, key: Any, value: Any, causal: bool, window: int | None, segment_ids: Any) -> None:
    problems = []
    if not query.ndim == key.ndim == value.ndim == 4:
        problems.append("query, key and value are (batch, sequence, heads, head_dim), 4 dims each")
    else:
        if key.shape != value.shape:
            problems.append("value must have the shape of key")
        if (query.shape[0], query.shape[3]) != (key.shape[0], key.shape[3]):
            problems.append("query and key must have the same batch and the same head_dim")
        if query.shape[2] % key.shape[2]:
            problems.append(
                f"{query.shape[2]} query heads cannot share {key.shape[2]} key heads evenly: make one a multiple"
            )
        if (causal or segment_ids is not None) and query.shape[1] != key.shape[1]:
            problems.append("causal, window and segment_ids need queries and keys of the same length")
    if len({x.dtype for x in (query, key, value)}) > 1:
        problems.append(f"query is {query.dtype}, key {key.dtype} and value {value.dtype}: cast them to one dtype")
    if window is not None and (window < 1 or not causal):
        problems.append(f"window={window} must be at least 1 and requires causal=True")
    if segment_ids is not None and segment_ids.shape != query.shape[:2]:
        problems.append(
            f"segment_ids must be (batch, sequence) like the query, {query.shape[:2]}, not {segment_ids.shape}"
        )
    if problems:
        shapes = f"query {query.shape}, key {key.shape}, value {value.shape}"
        raise ProgramError("\n  ".join([f"attention does not accept {shapes}:", *problems]))
