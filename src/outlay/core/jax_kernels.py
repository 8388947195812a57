"""Kernels and callbacks for which JAX asks an attached device; here also for hardware that is not attached.

Private JAX, apart from `jax_compat.py` because it is one idea of its own: the device compiled for need not be attached.
"""

from __future__ import annotations

import contextlib
import contextvars
import math
import threading
import types
import warnings
from collections.abc import Iterator
from typing import Any

import jax
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from jax._src.interpreters import mlir

from outlay.core.context_values import within
from outlay.core.jax_compat import is_compile_only

CUDNN_OF_TARGETS = 91_100
"""The version of cuDNN assumed for hardware that is not attached, 9.11: the first with attention on B300 too."""

LANES = 128
"""The Pallas kernel's blocks of queries and keys are multiples of this."""

MOST_ROWS = 512
"""The largest blocks of queries and keys, as MaxText sets them."""

MOST_KEYS = 2048 * LANES
"""The most numbers of keys that the backward pass takes at once, for which it writes one gradient of all queries."""

# Reentrant: attention is traced while callbacks are lowered, and both replace names in modules of JAX.
_patching = threading.RLock()


_sample_axes: contextvars.ContextVar[tuple[str, ...] | None] = contextvars.ContextVar("sample_axes", default=None)


@contextlib.contextmanager
def splitting_samples(axes: tuple[str, ...]) -> Iterator[None]:
    """Say over which mesh axes the samples of the step are split that is traced in this context.

    Args:
        axes: the axes; none if samples are whole.
    """
    with within(_sample_axes, axes):
        yield


def sample_axes() -> tuple[str, ...] | None:
    """Return the axes of `splitting_samples`; None outside of it."""
    return _sample_axes.get()


_missed: contextvars.ContextVar[list[str] | None] = contextvars.ContextVar("missed_kernels", default=None)


@contextlib.contextmanager
def holding_missed_kernels() -> Iterator[list[str]]:
    """Collect what `warn_of_missed_kernel` is told in this context, where a step may be traced again before it runs."""
    held: list[str] = []
    with within(_missed, held):
        yield held


def warn_of_missed_kernel(text: str) -> None:
    """Warn that an operation has no kernel of its own on the hardware that is compiled for."""
    held = _missed.get()
    if held is None:
        warnings.warn(text, stacklevel=3)
    else:
        held.append(text)


def compute_capability(device: jax.Device) -> tuple[int, int] | None:
    """Return the compute capability of an NVIDIA GPU; None for any other device."""
    words = str(getattr(device, "compute_capability", "")).split(".")
    is_nvidia = device.platform in ("gpu", "cuda") and len(words) == 2 and all(word.isdigit() for word in words)
    return (int(words[0]), int(words[1])) if is_nvidia else None


def cudnn_attention(
    query: jax.Array, key: jax.Array, value: jax.Array, *, causal: bool, window: int | None, scale: float
) -> jax.Array:
    """Compute attention with cuDNN's fused kernel, for the device that is compiled for.

    Args:
        query: (B, T, heads, head_dim), of a 16-bit dtype.
        key: (B, S, kv_heads, head_dim).
        value: as `key`.
        causal: whether a query sees no key after itself.
        window: how many keys a query sees, itself among them; all if None.
        scale: what scores are multiplied by.
    """
    mask = cudnn.MaskType.CAUSAL if causal else cudnn.MaskType.NO_MASK
    mixed: Any = cudnn.dot_product_attention(
        query, key, value, scale=scale, mask_type=mask, sliding_window_length=window
    )
    return mixed


def splash_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    segment_ids: jax.Array | None = None,
    *,
    causal: bool,
    window: int | None,
    interpret: bool = False,
) -> jax.Array:
    """Compute attention with the Pallas kernel for TPUs, for one device's samples and heads.

    Args:
        query: (B, heads, T, head_dim), times what scores are multiplied by; T and S are multiples of `LANES`.
        key: (B, kv_heads, S, head_dim).
        value: as `key`.
        segment_ids: (B, T), where T is S: a query sees only keys of its own segment.
        causal: whether a query sees no key after itself.
        window: how many keys a query sees, itself among them; all if None.
        interpret: run it in Pallas's interpreter, for tests on other devices.
    """
    # Imported here: it is heavy, and only programs for TPUs need it.
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    shape = (query.shape[2], key.shape[2])
    mask = masks.CausalMask(shape) if causal else masks.FullMask(shape)
    if window is not None:
        mask = masks.LocalMask(shape, window_size=(window - 1, 0), offset=0)
    rows, cols = (math.gcd(size, MOST_ROWS) for size in shape)
    sizes = splash.BlockSizes(
        **dict.fromkeys(("block_q", "block_q_dkv"), rows),
        **dict.fromkeys(("block_kv", "block_kv_compute", "block_kv_dkv_compute"), cols),
        block_kv_dkv=max(cols, math.gcd(shape[1], MOST_KEYS // max(LANES, key.shape[3]))),
        use_fused_bwd_kernel=True,
    )

    masks_of_heads = masks.MultiHeadMask([mask] * query.shape[1])
    kernel: Any = splash.make_splash_mha(
        masks_of_heads, head_shards=1, q_seq_shards=1, block_sizes=sizes, interpret=interpret
    )
    segments = [] if segment_ids is None else [splash.SegmentIds(segment_ids, segment_ids)]
    mixed: jax.Array = jax.vmap(kernel)(query, key, value, *segments)
    return mixed


@contextlib.contextmanager
def with_cost_estimate(product: int, num_exponentials: int) -> Iterator[None]:
    """Tell the compiler the cost of the Pallas kernel while attention is traced; JAX leaves it out.

    Args:
        product: FLOPs of one matrix product of one sample, over all scores that the mask lets be seen.
        num_exponentials: the number of those scores.
    """
    from jax.experimental import pallas
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash

    def with_cost(*args: Any, **options: Any) -> Any:
        # backward: the scores again and four gradients; forward: two products
        num = 5 if "_dkv" in options["name"] else 2
        cost = pallas.CostEstimate(flops=num * product, transcendentals=num_exponentials, bytes_accessed=0)
        return pallas.pallas_call(*args, **options, cost_estimate=cost)

    with replaced(splash, pl=types.SimpleNamespace(**{**vars(pallas), "pallas_call": with_cost})):
        yield


@contextlib.contextmanager
def as_if_attached(device: jax.Device) -> Iterator[None]:
    """Answer cuDNN's questions about the GPU for a device that is not attached, while a step or attention is traced.

    Args:
        device: the device compiled for; an attached one is asked by JAX itself.
    """
    capability = compute_capability(device)
    if not is_compile_only(device) or capability is None:
        yield
        return
    answers: dict[str, Any] = {
        "check_cudnn_version": lambda: CUDNN_OF_TARGETS,
        "check_compute_capability": lambda needed: capability >= _numbers(needed),
        "is_cuda_compute_capability_equal": lambda needed: capability == _numbers(needed),
    }
    with replaced(cudnn, **answers):
        yield


@contextlib.contextmanager
def replaced(module: Any, **others: Any) -> Iterator[None]:
    """Replace names of a module for the block."""
    with _patching:
        own = {name: getattr(module, name) for name in others}
        try:
            for name, other in others.items():
                setattr(module, name, other)
            yield
        finally:
            for name, original in own.items():
                setattr(module, name, original)


@contextlib.contextmanager
def lowering_callbacks() -> Iterator[None]:
    """Lower callbacks (`jax.debug.print`, `jax.pure_callback`, ...) for a device that is not attached.

    JAX asks for the backend that would run them, and fails where there is none.
    """
    with _patching:
        original = mlir.ModuleContext.get_backend

        def get_backend(self: Any, optional: bool = False) -> Any:
            try:
                return original(self, optional)
            except RuntimeError:
                return None

        mlir.ModuleContext.get_backend = get_backend
        try:
            yield
        finally:
            mlir.ModuleContext.get_backend = original


def drop_callbacks(lowered: jax.stages.Lowered) -> None:
    """Remove the callbacks from a program that never runs: a compile-only client accepts no host functions."""
    lowering: Any = lowered._lowering
    lowering.compile_args["host_callbacks"] = ()


def _numbers(capability: str) -> tuple[int, int]:
    major, minor = capability.split(".")
    return int(major), int(minor)
