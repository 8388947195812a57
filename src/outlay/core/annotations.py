"""Read the sharding annotations of a model: Flax's partitioning metadata, arrays with named axes."""

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
    """The sharding annotation of one array of a model.

    Attributes:
        names: for each dim the name of a mesh axis or a logical name; None for a dim that is not split.
        rules: the mesh axes that the logical names stand for, where the model brings its own mapping.
    """

    names: tuple[Any, ...]
    rules: tuple[tuple[str, Axes], ...] = ()


def read_annotations(tree: Any) -> dict[str, Annotation]:
    """Return the annotation of each annotated array of a model, by path."""
    annotations = ((path, _annotation(node)) for path, node in flatten_paths(tree, is_leaf=_is_annotated)[0])
    return {path: annotation for path, annotation in annotations if annotation is not None}


@contextlib.contextmanager
def unplaced() -> Iterator[None]:
    """Have NNX create annotated variables within the block without placing them where their annotations say."""
    nnx = sys.modules.get("flax.nnx")
    with nnx.use_eager_sharding(False) if nnx else contextlib.nullcontext():
        yield


def placed_by_plan(init: Callable[..., Any], *args: Any) -> Any:
    """Return what `init` creates, even where NNX cannot place its annotated variables on any mesh.

    NNX records in each variable whether it was placed, and JAX takes trees with different records for different trees.
    So placement is switched off only where it fails.
    """
    try:
        return init(*args)
    except ValueError as error:
        if "flax.nnx" not in sys.modules:
            raise
        with unplaced(), contextlib.suppress(ValueError):
            return init(*args)
        # Without placement it fails as well, so the first error is the real one.
        raise error


def _is_annotated(node: Any) -> bool:
    return _annotation(node) is not None


def _annotation(node: Any) -> Annotation | None:
    """Return the annotation of a box around an array.

    A box is recognized by its attributes: no framework is imported that the model does not use.
    """
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
    # The metadata key was renamed in Flax 0.12.4: `sharding_names` became `out_sharding`.
    for key in ("out_sharding", "sharding_names", "sharding"):
        names = metadata.get(key)
        if isinstance(names, tuple | P):
            return Annotation(tuple(names), tuple(metadata.get("sharding_rules") or ()))
    return None
