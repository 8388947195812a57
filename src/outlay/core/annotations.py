"""Read the sharding annotations of a model: Flax's partitioning metadata, arrays with named axes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import jax

from outlay.core.annotated_boxes import Annotation, annotation_of, is_annotated
from outlay.core.flat_nodes import flat_nodes, is_flat_node
from outlay.core.paths import flatten_paths


def read_annotations(tree: Any) -> dict[str, Annotation]:
    """Return the annotation of each annotated array of a model, by path."""
    tree = jax.tree.map(
        lambda node: node.with_leaves(node.annotations) if is_flat_node(node) else node,
        flat_nodes(tree),
        is_leaf=lambda node: is_flat_node(node) or is_annotated(node),
    )
    annotations = ((path, annotation_of(node)) for path, node in flatten_paths(tree, is_leaf=is_annotated)[0])
    return {path: annotation for path, annotation in annotations if annotation is not None}


@contextlib.contextmanager
def unplaced() -> Iterator[None]:
    """Have NNX create annotated variables within the block without placing them where their annotations say."""
    nnx = sys.modules.get("flax.nnx")
    with nnx.use_eager_sharding(False) if nnx else contextlib.nullcontext():
        yield
