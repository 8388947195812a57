"""Kernels and callbacks that ask JAX for a device of some hardware; here for hardware that need not be there.

Private JAX, apart from `jax_compat.py` because it is one idea of its own: what is compiled for is not what is attached.
"""

from __future__ import annotations

import contextlib
import math
import threading
import types
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from jax._src.interpreters import mlir
from jax._src.mesh import get_concrete_mesh

from outlay.core.jax_compat import is_compile_only

CUDNN_OF_TARGETS = 91_100
"""The cuDNN that hardware which is not here is taken to have, 9.11: the first with attention on all of it (B300)."""

LANES = 128
"""What the Pallas kernel's blocks of queries and keys are multiples of."""

MOST_ROWS = 512
"""Queries and keys of its blocks at most, as MaxText sets them."""

_patching = threading.RLock()  # attention is traced while callbacks are lowered


def compiled_for() -> jax.Device:
    """A device that the operation being traced is compiled for: one of the mesh in context, else of JAX's own."""
    mesh = get_concrete_mesh()
    return mesh.devices.flat[0] if mesh.size and not mesh.empty else jax.local_devices()[0]


def compute_capability(device: jax.Device) -> tuple[int, int] | None:
    """Of an NVIDIA GPU; None of anything else."""
    words = str(getattr(device, "compute_capability", "")).split(".")
    is_nvidia = device.platform in ("gpu", "cuda") and len(words) == 2 and all(word.isdigit() for word in words)
    return (int(words[0]), int(words[1])) if is_nvidia else None


def cudnn_attention(
    query: jax.Array, key: jax.Array, value: jax.Array, *, causal: bool, window: int | None, scale: float
) -> jax.Array:
    """Attention by cuDNN's fused kernel, for the device that this is compiled for.

    Args:
        query: (B, T, heads, head_dim), of 16 bits a number.
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
    query: jax.Array, key: jax.Array, value: jax.Array, *, causal: bool, window: int | None, scale: float
) -> jax.Array:
    """Attention by the Pallas kernel for TPUs, of the samples and heads of one device; otherwise as `cudnn_attention`.

    Args:
        query: (B, T, heads, head_dim); T and S are multiples of `LANES`.
        key: (B, S, kv_heads, head_dim).
        value: as `key`.
        causal: whether a query sees no key after itself.
        window: how many keys a query sees, itself among them; all if None.
        scale: what scores are multiplied by.
    """
    # Heavy to import, and wanted for TPUs alone.
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    shape = (query.shape[1], key.shape[1])
    mask = masks.CausalMask(shape) if causal else masks.FullMask(shape)
    if window is not None:
        mask = masks.LocalMask(shape, window_size=(window - 1, 0), offset=0)
    rows, cols = (math.gcd(size, MOST_ROWS) for size in shape)
    sizes = splash.BlockSizes(
        **dict.fromkeys(("block_q", "block_q_dkv"), rows),
        **dict.fromkeys(("block_kv", "block_kv_compute", "block_kv_dkv", "block_kv_dkv_compute"), cols),
        use_fused_bwd_kernel=True,
    )

    queries, keys, values = (jnp.swapaxes(x, 1, 2) for x in (query * scale, key, value))
    masks_of_heads = masks.MultiHeadMask([mask] * query.shape[2])
    kernel: Any = splash.make_splash_mha(masks_of_heads, head_shards=1, q_seq_shards=1, block_sizes=sizes)
    return jnp.swapaxes(jax.vmap(kernel)(queries, keys, values), 1, 2)


@contextlib.contextmanager
def telling_cost(product: int, num_exponentials: int) -> Iterator[None]:
    """Let the compiler be with_cost what the Pallas kernel costs, which JAX leaves out, while attention is traced.

    Args:
        product: FLOPs of one matrix product of a sample: of all scores that are seen.
        num_exponentials: how many of these there are.
    """
    from jax.experimental import pallas
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash

    def with_cost(*args: Any, **options: Any) -> Any:
        num = 5 if "_dkv" in options["name"] else 2  # scores again and four gradients, or scores and mixed values
        cost = pallas.CostEstimate(flops=num * product, transcendentals=num_exponentials, bytes_accessed=0)
        return pallas.pallas_call(*args, **options, cost_estimate=cost)

    with _patching, _instead(splash, pl=types.SimpleNamespace(**{**vars(pallas), "pallas_call": with_cost})):
        yield


@contextlib.contextmanager
def answering_for(device: jax.Device) -> Iterator[None]:
    """Let cuDNN's questions about the GPU be answered for a device that is not here, while attention is traced.

    Args:
        device: what is compiled for; where it is attached, JAX asks it itself.
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
    with _patching, _instead(cudnn, **answers):
        yield


@contextlib.contextmanager
def _instead(module: Any, **others: Any) -> Iterator[None]:
    """A module with other things under some of its names."""
    own = {name: getattr(module, name) for name in others}
    try:
        for name, other in others.items():
            setattr(module, name, other)
        yield
    finally:
        for name, original in own.items():
            setattr(module, name, original)


@contextlib.contextmanager
def lowering_callbacks(device: jax.Device) -> Iterator[None]:
    """Let callbacks (`jax.debug.print`, `jax.pure_callback`, ...) be lowered for a device that is not here.

    JAX asks for the backend that would call them, and for a GPU that is not here there is none.

    Args:
        device: what is compiled for.
    """
    if not is_compile_only(device):
        yield
        return
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
    """Leave out what a program that is never run would call: a compile-only client takes no functions."""
    lowering: Any = lowered._lowering
    lowering.compile_args["host_callbacks"] = ()


def _numbers(capability: str) -> tuple[int, int]:
    major, minor = capability.split(".")
    return int(major), int(minor)
