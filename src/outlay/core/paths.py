"""Dotted paths: every leaf of a tree by name, whatever the tree is made of.

A path's parts come from dictionary keys, sequence positions, attribute and dataclass field names. Boxes that hold
one array under `.value` (Flax variables and partitioned parameters) are transparent: `dense.kernel`, not
`dense.kernel.value`. A part that itself holds a dot, a `*`, a quote, or nothing at all is written in single quotes.
"""

from __future__ import annotations

import collections
import functools
import re
from collections.abc import Callable
from typing import Any

import jax

from outlay.core.error_types import LayoutError, Problem
from outlay.core.quantities import counted

Parts = tuple[str, ...]


def flatten_paths(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[tuple[str, Any]], Any]:
    """Every leaf of a tree with its dotted path, in JAX's leaf order, and the tree's structure.

    Args:
        tree: the tree.
        is_leaf: what counts as a leaf besides those of JAX.

    >>> flatten_paths({"layers": [{"kernel": 1.0}], "step": 0})[0]
    [('layers.0.kernel', 1.0), ('step', 0)]

    Raises:
        LayoutError: two leaves would have the same path, so no rule could tell them apart.
    """
    with_keys, structure = jax.tree_util.tree_flatten_with_path(tree, is_leaf)
    siblings = collections.Counter(key_path[:-1] for key_path, _ in with_keys)
    named = [(join_parts(_parts(key_path, siblings)), leaf) for key_path, leaf in with_keys]
    _refuse_duplicates([path for path, _ in named])
    return named, structure


def map_with_paths(function: Callable[[str, Any], Any], tree: Any) -> Any:
    """The tree with each leaf replaced by `function(path, leaf)`."""
    named, structure = flatten_paths(tree)
    return jax.tree_util.tree_unflatten(structure, [function(path, leaf) for path, leaf in named])


def join_parts(parts: Parts) -> str:
    """Parts to a dotted path, quoting the parts that need it.

    >>> join_parts(("params", "mlp/~/linear_0", "a.b"))
    "params.mlp/~/linear_0.'a.b'"
    """
    return ".".join(_quoted(part) for part in parts)


@functools.lru_cache(maxsize=65536)
def split_path(path: str) -> Parts:
    """A dotted path to its parts: the inverse of `join_parts`.

    >>> split_path("params.'a.b'.kernel")
    ('params', 'a.b', 'kernel')
    """
    return tuple(_unquoted(piece) for piece in _PIECE.findall(path)) if path else ()


def _parts(key_path: tuple[Any, ...], siblings: collections.Counter) -> Parts:
    if len(key_path) > 1 and _is_box_value(key_path[-1]) and siblings[key_path[:-1]] == 1:
        key_path = key_path[:-1]
    return tuple(_part(key) for key in key_path)


def _is_box_value(key: Any) -> bool:
    return isinstance(key, jax.tree_util.GetAttrKey) and key.name == "value"


def _part(key: Any) -> str:
    tree_util = jax.tree_util
    if isinstance(key, tree_util.GetAttrKey):
        return key.name
    if isinstance(key, tree_util.SequenceKey):
        return str(key.idx)
    if isinstance(key, tree_util.DictKey | tree_util.FlattenedIndexKey):
        return str(key.key)
    return str(key)  # a custom node's own key type: its text is all that is known of it


_PIECE = re.compile(r"'(?:[^'\\]|\\.)*'|[^.]+")
_PLAIN = re.compile(r"[^.*'\\\s]+")


@functools.lru_cache(maxsize=65536)
def _quoted(part: str) -> str:
    if _PLAIN.fullmatch(part):
        return part
    escaped = part.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _unquoted(piece: str) -> str:
    if not piece.startswith("'"):
        return piece
    return re.sub(r"\\(.)", r"\1", piece[1:-1])


def _refuse_duplicates(paths: list[str]) -> None:
    twice = [path for path, count in collections.Counter(paths).items() if count > 1]
    if twice:
        raise LayoutError(
            f"{counted(len(twice), 'path names', 'paths name')} more than one leaf, so no rule could tell them apart:",
            [
                Problem("same path twice", path, "two keys of the tree read the same", "rename one of the keys")
                for path in twice
            ],
        )
