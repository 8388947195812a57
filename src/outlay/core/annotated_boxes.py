"""Boxes around arrays that say how these are meant to be split: Flax's, arrays with named axes of haliax and penzai.

A box is recognized by its attributes: no library is imported that the model does not use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

Axes = str | Sequence[str] | None
"""What a logical name stands for: a mesh axis, several, or none."""


@dataclass(frozen=True)
class Annotation:
    """The sharding annotation of one array of a model.

    Attributes:
        names: for each dim the name of a mesh axis or a logical name; None for a dim that is not split.
        rules: the mesh axes that the logical names stand for, where the model brings its own mapping.
        shape: the shape of the array, where the library does not keep the annotation true to it: NNX annotates one
            layer, and `nnx.vmap` puts a dim in front of its array.
    """

    names: tuple[Any, ...]
    rules: tuple[tuple[str, Axes], ...] = ()
    shape: tuple[int, ...] | None = None


def is_annotated(node: Any) -> bool:
    """Return whether a node of a tree is a box with an annotation."""
    return annotation_of(node) is not None


def annotation_of(node: Any) -> Annotation | None:
    """Return the annotation of a box around an array, or what an `Annotation` in its place says; else None."""
    if isinstance(node, Annotation):
        return node
    get_metadata: Callable[[], Mapping[str, Any]] | None = getattr(node, "get_metadata", None)
    if get_metadata is not None and type(node).__module__.startswith("flax.nnx"):
        return _of_nnx(get_metadata(), node)
    if isinstance(names := getattr(node, "names", None), tuple) and hasattr(node, "get_partition_spec"):
        return Annotation(names, tuple(getattr(node, "rules", None) or ()))
    axes = getattr(node, "axes", None)
    if isinstance(axes, tuple) and axes and hasattr(node, "array") and all(hasattr(axis, "name") for axis in axes):
        return Annotation(tuple(axis.name for axis in axes))
    named = getattr(node, "named_axes", None)
    if isinstance(named, Mapping) and named and hasattr(node, "data_array"):
        # Axes without a name stand in front of those with one.
        return Annotation((*[None] * (jnp.ndim(node.data_array) - len(named)), *named))
    return None


def _of_nnx(metadata: Mapping[str, Any], variable: Any) -> Annotation | None:
    # The metadata key was renamed in Flax 0.12.4: `sharding_names` became `out_sharding`.
    for key in ("out_sharding", "sharding_names", "sharding"):
        names = metadata.get(key)
        names = names.spec if isinstance(names, NamedSharding) else names
        if isinstance(names, tuple | P):
            rules = tuple(metadata.get("sharding_rules") or ())
            return Annotation(tuple(names), rules, getattr(variable, "shape", None))
    return None
