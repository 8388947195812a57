"""Which attention the fused kernels of GPUs and TPUs can do, and what stands in the way of the others.

A refusal is written into the program, as the name of the scope around what is done instead, so that whoever reads the
compiled program knows it, too.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from outlay.core import jax_kernels

_RULES = {
    "segments": (
        "fused kernels take no segment_ids here",
        "one text a sequence, filled up and weighted, in place of segment_ids",
    ),
    "platform": ("there is none for {0}", "another target"),
    "capability": (
        "cuDNN's takes compute capability 8.0 or higher, and this GPU has {0}.{1}",
        "a GPU from Ampere on, such as --target a100-80gb:1x8",
    ),
    "cudnn_dtype": (
        "cuDNN's takes bfloat16 or float16, and this is {0}",
        "cast queries, keys and values to jnp.bfloat16, or compute in it (--dtype bfloat16)",
    ),
    "cudnn_head_dim": (
        "cuDNN's takes a head_dim of at most {0} on this GPU, and this is {1}",
        "more heads with at most {0} features each",
    ),
    "cudnn_sequence": (
        "cuDNN's takes sequences of an even length, and these are {0}, {1}",
        "sequences that are longer by one",
    ),
    "tpu_dtype": (
        "the Pallas kernel takes bfloat16 or float32, and this is {0}",
        "cast queries, keys and values to jnp.bfloat16",
    ),
    "tpu_sequence": (
        "the Pallas kernel takes sequences that {0} divides, and these are {1}, {2}",
        "sequences filled up to a multiple of {0}",
    ),
    "tpu_axes": (
        "the Pallas kernel is called on automatic axes only",
        'mode="auto", with the mesh as outlay.mesh makes it',
    ),
    "tpu_split": (
        "the compiler cannot split the Pallas kernel, and split= does not say how",
        'split=P("data", None, "model") with the axes of batch and heads; for lm a rule for "queries"',
    ),
    "tpu_pieces": (
        "split= splits the sequence, or does not divide batch {0} and heads {1}",
        "a split that leaves the sequence whole, over axes that divide the batch and the key heads",
    ),
}
"""What stands in the way, and the edit that clears it, by the rule; the numbers of the case go in between."""

SCOPE = "no_kernel."
"""Begins the names of scopes that tell a refusal."""

_SCOPE_NAME = re.compile(rf"{re.escape(SCOPE)}([a-z_]+)((?:\.\w+)*)")


@dataclass(frozen=True)
class Refusal:
    """The reason why no fused kernel can be used on a device.

    Attributes:
        rule: which rule refuses it.
        numbers: of the case, as words.
    """

    rule: str
    numbers: tuple[str, ...] = ()

    @property
    def why(self) -> str:
        """In words."""
        return _RULES[self.rule][0].format(*self.numbers)

    @property
    def fix(self) -> str:
        """The edit that allows a kernel."""
        return _RULES[self.rule][1].format(*self.numbers)

    @property
    def scope(self) -> str:
        """The name of the scope around what is done instead."""
        return SCOPE + ".".join([self.rule, *self.numbers])

    @classmethod
    def of_scope(cls, op_name: str) -> Refusal | None:
        """Parse a refusal from the name of an operation; None where it holds none.

        >>> Refusal.of_scope("jit(step)/attention/no_kernel.cudnn_dtype.float32/while/body/mul").why
        "cuDNN's takes bfloat16 or float16, and this is float32"
        """
        match = _SCOPE_NAME.search(op_name)
        return cls(match[1], tuple(match[2].split(".")[1:])) if match and match[1] in _RULES else None


def refusal(
    device: jax.Device, query: Any, key: Any, segment_ids: Any = None, split: PartitionSpec | None = None
) -> Refusal | None:
    """Return the reason why a device cannot use a fused kernel for these inputs; None if it can.

    Args:
        device: what the program is compiled for.
        query: the queries, or their shape and dtype.
        key: the keys, likewise.
        segment_ids: as for `attention`.
        split: as for `attention`.
    """
    if segment_ids is not None:
        return Refusal("segments")
    if device.platform == "tpu":
        return _of_tpus(query, key, split)
    capability, dim = jax_kernels.compute_capability(device), query.shape[-1]
    if capability is None:
        return Refusal("platform", (device.platform,))
    if capability < (8, 0):
        return Refusal("capability", (f"{capability[0]}", f"{capability[1]}"))
    if query.dtype not in (jnp.bfloat16, jnp.float16):
        return Refusal("cudnn_dtype", (f"{query.dtype}",))
    largest = 256 if capability >= (9, 0) else 128
    if dim > largest:
        return Refusal("cudnn_head_dim", (f"{largest}", f"{dim}"))
    lengths = query.shape[1], key.shape[1]
    return Refusal("cudnn_sequence", tuple(map(str, lengths))) if any(length % 2 for length in lengths) else None


def _of_tpus(query: Any, key: Any, split: PartitionSpec | None) -> Refusal | None:
    mesh, lanes = jax.sharding.get_abstract_mesh(), jax_kernels.LANES
    if query.dtype not in (jnp.bfloat16, jnp.float32):  # Mosaic: "Invalid vector type for load"
        return Refusal("tpu_dtype", (f"{query.dtype}",))
    if query.shape[1] % lanes or key.shape[1] % lanes:
        return Refusal("tpu_sequence", (f"{lanes}", f"{query.shape[1]}", f"{key.shape[1]}"))
    if any(axis_type != jax.sharding.AxisType.Auto for axis_type in mesh.axis_types):
        return Refusal("tpu_axes")
    if mesh.size > 1 and split is None:
        return Refusal("tpu_split")
    batch, sequence, heads = (num_pieces(split, dim) for dim in range(3))
    if sequence > 1 or query.shape[0] % batch or query.shape[2] % heads or key.shape[2] % heads:
        return Refusal("tpu_pieces", (f"{query.shape[0]}", f"{key.shape[2]}"))
    return None


def num_pieces(split: PartitionSpec | None, dim: int) -> int:
    """The number of pieces a dim is split into, on the mesh in context."""
    axes = None if split is None or dim >= len(split) else split[dim]
    sizes = dict(jax.sharding.get_abstract_mesh().shape)
    return math.prod(sizes[axis] for axis in ((axes,) if isinstance(axes, str) else axes or ()))
