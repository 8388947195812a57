"""Kernels that JAX has for some hardware, and that ask a device of it; here for hardware that need not be there.

Private JAX, apart from `jax_compat.py` because it is one idea of its own: what is compiled for is not what is attached.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import jax
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from jax._src.mesh import get_concrete_mesh

from outlay.core.jax_compat import is_compile_only

CUDNN_OF_TARGETS = 91_002
"""The cuDNN that hardware which is not here is taken to have, 9.10.2: the first with all that is asked of it."""

_patching = threading.Lock()


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
        "check_compute_capability": lambda wanted: capability >= _numbers(wanted),
        "is_cuda_compute_capability_equal": lambda wanted: capability == _numbers(wanted),
    }
    with _patching:
        asked = {name: getattr(cudnn, name) for name in answers}
        try:
            for name, answer in answers.items():
                setattr(cudnn, name, answer)
            yield
        finally:
            for name, original in asked.items():
                setattr(cudnn, name, original)


def _numbers(capability: str) -> tuple[int, int]:
    major, minor = capability.split(".")
    return int(major), int(minor)
