"""Decide whether the fused attention kernels of GPUs and TPUs support given arguments, and if not, why.

The reason is recorded in the program, as the name of the scope around the fallback, so that `explain` can read it from
the compiled program.
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
        "the cuDNN kernel does not support segment_ids",
        "use one text per sequence, padded and weighted, instead of segment_ids",
    ),
    "ring": (
        "keys and values come from other devices piece by piece, and no kernel takes pieces",
        'context("AXIS", "all_to_all"), with which a device has all tokens of some heads',
    ),
    "terms": (
        "a bias, a mask or lengths are given, and no kernel takes them by blocks",
        "is_causal=, or segment_ids= of outlay.attention, which say what a mask says",
    ),
    "platform": ("there is none for {0}", "use another target"),
    "capability": (
        "the cuDNN kernel needs compute capability 8.0 or higher, but this GPU has {0}.{1}",
        "use a GPU from Ampere on, such as --target a100-80gb:1x8",
    ),
    "cudnn_dtype": (
        "the cuDNN kernel needs bfloat16 or float16, not {0}",
        "cast queries, keys and values to jnp.bfloat16, or compute in it (--dtype bfloat16)",
    ),
    "cudnn_head_dim": (
        "the cuDNN kernel needs a head_dim of at most {0} on this GPU, not {1}",
        "use more heads with at most {0} features each",
    ),
    "cudnn_sequence": (
        "the cuDNN kernel needs sequences of even length, not {0}, {1}",
        "make the sequences longer by one",
    ),
    "tpu_dtype": (
        "the Pallas kernel needs bfloat16 or float32, not {0}",
        "cast queries, keys and values to jnp.bfloat16",
    ),
    "tpu_sequence": (
        "the Pallas kernel needs sequence lengths divisible by {0}, not {1}, {2}",
        "pad the sequences to a multiple of {0}",
    ),
    "tpu_axes": (
        "the Pallas kernel runs on Auto mesh axes only",
        'use mode="auto", with a mesh from outlay.mesh',
    ),
    "tpu_split": (
        "the compiler cannot partition the Pallas kernel, and split= does not say how",
        'pass split=P("data", None, "model") with the axes of batch and heads; for lm, add a rule for "queries"',
    ),
    "tpu_pieces": (
        "split= splits the sequence, or does not divide batch {0} and heads {1}",
        "use a split that leaves the sequence whole, over axes that divide the batch and the key heads",
    ),
}
"""The reason and the fix of each rule; the numbers of the case are filled in."""

SCOPE = "no_kernel."
"""The prefix of scope names that record a refusal."""

_SCOPE_NAME = re.compile(rf"{re.escape(SCOPE)}([a-z_]+)((?:\.\w+)*)")


@dataclass(frozen=True)
class Refusal:
    """The reason why a device cannot use a fused kernel.

    Attributes:
        rule: the name of the rule.
        numbers: the numbers of the case, as text.
    """

    rule: str
    numbers: tuple[str, ...] = ()

    @property
    def why(self) -> str:
        """The reason as text."""
        return _RULES[self.rule][0].format(*self.numbers)

    @property
    def fix(self) -> str:
        """The edit that allows a kernel."""
        return _RULES[self.rule][1].format(*self.numbers)

    @property
    def scope(self) -> str:
        """The name of the scope around the fallback."""
        return SCOPE + ".".join([self.rule, *self.numbers])

    @classmethod
    def of_scope(cls, op_name: str) -> Refusal | None:
        """Parse a refusal from the name of an operation; None if there is none.

        >>> Refusal.of_scope("jit(step)/attention/no_kernel.cudnn_dtype.float32/while/body/mul").why
        'the cuDNN kernel needs bfloat16 or float16, not float32'
        """
        match = _SCOPE_NAME.search(op_name)
        return cls(match[1], tuple(match[2].split(".")[1:])) if match and match[1] in _RULES else None


def refusal(
    device: jax.Device, query: Any, key: Any, segment_ids: Any = None, split: PartitionSpec | None = None
) -> Refusal | None:
    """Return the reason why a device cannot use a fused kernel for these inputs; None if it can.

    Args:
        device: the device that the program is compiled for.
        query: the queries, or their shape and dtype.
        key: the keys, or their shape and dtype.
        segment_ids: as for `attention`.
        split: as for `attention`.
    """
    if device.platform == "tpu":
        return _of_tpus(query, key, split)
    capability, dim = jax_kernels.compute_capability(device), query.shape[-1]
    if capability is None:
        return Refusal("platform", (device.platform,))
    if segment_ids is not None:
        return Refusal("segments")
    if capability < (8, 0):
        return Refusal("capability", (f"{capability[0]}", f"{capability[1]}"))
    if query.dtype not in (jnp.bfloat16, jnp.float16):
        return Refusal("cudnn_dtype", (f"{query.dtype}",))
    largest = 256 if capability >= (9, 0) else 128
    if dim > largest:
        return Refusal("cudnn_head_dim", (f"{largest}", f"{dim}"))
    lengths = query.shape[1], key.shape[1]
    return Refusal("cudnn_sequence", tuple(map(str, lengths))) if any(length % 2 for length in lengths) else None


def split_by_layout() -> PartitionSpec | None:
    """Return how a layout splits queries, keys and values on TPUs: batch as the step's, heads over the other axes.

    None if nothing is known of the layout.
    """
    mesh, sample_axes = jax.sharding.get_abstract_mesh(), jax_kernels.sample_axes()
    if sample_axes is None:
        return None
    types = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    free = [axis for axis, size in mesh.shape.items() if size > 1 and types[axis] == jax.sharding.AxisType.Auto]
    samples = tuple(axis for axis in sample_axes if axis in free)
    heads = tuple(axis for axis in free if axis not in samples)
    return PartitionSpec(samples or None, None, heads or None)


def _of_tpus(query: Any, key: Any, split: PartitionSpec | None) -> Refusal | None:
    mesh, lanes = jax.sharding.get_abstract_mesh(), jax_kernels.LANES
    if query.dtype not in (jnp.bfloat16, jnp.float32):  # for float16, Mosaic fails with "Invalid vector type for load"
        return Refusal("tpu_dtype", (f"{query.dtype}",))
    if query.shape[1] % lanes or key.shape[1] % lanes:
        return Refusal("tpu_sequence", (f"{lanes}", f"{query.shape[1]}", f"{key.shape[1]}"))
    if jax.sharding.AxisType.Explicit in mesh.axis_types:
        return Refusal("tpu_axes")
    sizes = zip(mesh.shape.values(), mesh.axis_types, strict=True)
    if split is None and any(size > 1 and of == jax.sharding.AxisType.Auto for size, of in sizes):
        return Refusal("tpu_split")
    batch, sequence, heads = (num_pieces(split, dim) for dim in range(3))
    if sequence > 1 or query.shape[0] % batch or query.shape[2] % heads or key.shape[2] % heads:
        return Refusal("tpu_pieces", (f"{query.shape[0]}", f"{key.shape[2]}"))
    return None


def num_pieces(split: PartitionSpec | None, dim: int) -> int:
    """Count the shards of a dim, on the mesh in context."""
    axes = None if split is None or dim >= len(split) else split[dim]
    sizes = dict(jax.sharding.get_abstract_mesh().shape)
    return math.prod(sizes[axis] for axis in ((axes,) if isinstance(axes, str) else axes or ()))
