"""Low-rank adapters for frozen projections, which may be quantized to 8-bit integers."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx


class Adapter(nnx.Param):
    """A trainable parameter of an adapter; the model itself is frozen."""


class AdaptedLinear(nnx.LinearGeneral):
    """A projection plus a low-rank projection of the same input. Source: Hu et al. (2021), arXiv:2106.09685.

    The second low-rank factor starts at zero, so that training starts from the original model. With 8-bit kernels, the
    scale of each output feature multiplies the product, so that no kernel ever exists in floating point.

    Args:
        inputs: the contracted dims of the input, or one dim.
        outputs: the dims of the output, or one dim.
        rank: the rank of the adapter.
        is_int8: store the kernel as 8-bit integers with a scale for each output feature.
        rngs: the source of the initial parameters.
        other: as for `nnx.LinearGeneral`.
    """

    def __init__(self, inputs: Any, outputs: Any, *, rank: int, is_int8: bool, rngs: nnx.Rngs, **other: Any) -> None:
        super().__init__(inputs, outputs, rngs=rngs, **other)
        num_inputs, num_outputs = math.prod(self.in_features), math.prod(self.out_features)
        dtype = self.param_dtype
        down = jax.random.normal(rngs.params(), (num_inputs, rank), jnp.float32) / math.sqrt(num_inputs)
        self.down, self.up = Adapter(down.astype(dtype)), Adapter(jnp.zeros((rank, num_outputs), dtype))
        kernel, scale = quantise(self.kernel[...], len(self.in_features)) if is_int8 else (self.kernel[...], None)
        self.kernel = nnx.Param(kernel)
        self.scale = None if scale is None else nnx.Param(scale)

    def __call__(self, x: jax.Array, out_sharding: Any = None) -> jax.Array:
        """Map (…, *inputs) to (…, *outputs)."""
        out = super().__call__(x, out_sharding)
        if self.scale is not None:
            scale = self.scale[...].astype(out.dtype)
            out = out * jnp.expand_dims(scale, range(out.ndim - scale.ndim))
        flat = x.reshape(*x.shape[: x.ndim - len(self.in_features)], -1).astype(out.dtype)
        low = flat @ self.down[...].astype(out.dtype)
        return out + (low @ self.up[...].astype(out.dtype)).reshape(out.shape)


def quantise(kernel: jax.Array, num_inputs: int) -> tuple[jax.Array, jax.Array]:
    """Quantise a kernel to 8-bit integers with a float32 scale per output feature, whose largest weight becomes 127.

    Args:
        kernel: (*inputs, *outputs).
        num_inputs: the number of input dims.

    Example:
        >>> kernel = jnp.array([[1.0, -4.0], [0.5, 2.0]])
        >>> exact, scale = quantise(kernel, 1)
        >>> exact.dtype, bool(np.abs(exact * scale[None] - kernel).max() <= 4 / 127 / 2)
        (dtype('int8'), True)
    """
    floats = kernel.astype(jnp.float32)
    scale = jnp.maximum(jnp.abs(floats).max(axis=tuple(range(num_inputs))), 1e-12) / 127
    return jnp.round(floats / jnp.expand_dims(scale, range(num_inputs))).astype(jnp.int8), scale
