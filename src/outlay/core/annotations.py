"""What a model says itself of how its arrays are split: Flax's partitioning metadata, arrays with named axes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jax.sharding import PartitionSpec as P

from outlay.core.paths import flatten_paths

Axes = str | Sequence[str] | None
"""What a logical name stands for: a mesh axis, several, or none."""


@dataclass(frozen=True)
class Annotation:
    """What a model says of one of its arrays.

    Attributes:
        names: a name for each dim, of a mesh axis or a logical one; None for a dim that is not split.
        rules: which mesh axes the logical names stand for, where the model says so itself.
    """

    names: tuple[Any, ...]
    rules: tuple[tuple[str, Axes], ...] = ()


def read_annotations(tree: Any) -> dict[str, Annotation]:
    """What a model says of each of its arrays, by path; nothing of arrays that it says nothing of."""
    annotations = ((path, _annotation(node)) for path, node in flatten_paths(tree, is_leaf=_is_annotated)[0])
    return {path: annotation for path, annotation in annotations if annotation is not None}


@contextlib.contextmanager
def unplaced() -> Iterator[None]:
    """A block in which NNX makes annotated variables without placing them where their annotations say."""
    nnx = sys.modules.get("flax.nnx")
    with nnx.use_eager_sharding(False) if nnx else contextlib.nullcontext():
        yield


def placed_by_plan(init: Callable[..., Any], *args: Any) -> Any:
    """What `init` makes, even where NNX cannot place its annotated variables: their names may be of no mesh.

    NNX notes in each variable whether it was to place it, so it is told not to only where it must: trees with other
    notes are other trees to JAX.
    """
    try:
        return init(*args)
    except ValueError as error:
        if "flax.nnx" not in sys.modules:
            raise
        with unplaced(), contextlib.suppress(ValueError):
            return init(*args)
        raise error


def _is_annotated(node: Any) -> bool:
    return _annotation(node) is not None


def _annotation(node: Any) -> Annotation | None:
    """Of a box around an array; told by what it has, so that no framework is imported that the model does not use."""
    get_metadata: Callable[[], Mapping[str, Any]] | None = getattr(node, "get_metadata", None)
    if get_metadata is not None and type(node).__module__.startswith("flax.nnx"):
        return _of_nnx(get_metadata())
    if isinstance(names := getattr(node, "names", None), tuple) and hasattr(node, "get_partition_spec"):
        return Annotation(names, tuple(getattr(node, "rules", None) or ()))
    axes = getattr(node, "axes", None)
    if isinstance(axes, tuple) and axes and hasattr(node, "array") and all(hasattr(axis, "name") for axis in axes):
        return Annotation(tuple(axis.name for axis in axes))
    return None


def _of_nnx(metadata: Mapping[str, Any]) -> Annotation | None:
    for key in ("out_sharding", "sharding_names", "sharding"):
        names = metadata.get(key)
        if isinstance(names, tuple | P):
            return Annotation(tuple(names), tuple(metadata.get("sharding_rules") or ()))
    return None
