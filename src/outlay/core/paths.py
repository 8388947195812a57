"""Dotted paths, which name the leaves of any tree, and glob patterns over them.

The parts of a path are dictionary keys, sequence positions, and names of attributes and dataclass fields. Boxes that
hold one array under `.value` (Flax variables and partitioned parameters) are left out: `dense.kernel`, not
`dense.kernel.value`. A part that is empty, or contains a dot, a `*` or a quote, is written in single quotes.

In a pattern `*` is one part (or a piece of one), `**` any number of parts.
"""

from __future__ import annotations

import collections
import functools
import re
from collections.abc import Callable
from typing import Any

import jax

from outlay.core.error_types import LayoutError, Problem
from outlay.core.flat_nodes import LabelKey, PathKeys, flat_nodes
from outlay.core.quantities import counted

Parts = tuple[str, ...]


def flatten_paths(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[tuple[str, Any]], Any]:
    """Return every leaf of a tree with its dotted path, in JAX's leaf order, and the tree's structure.

    Args:
        tree: the tree.
        is_leaf: which nodes count as leaves besides those of JAX.

    >>> flatten_paths({"layers": [{"kernel": 1.0}], "step": 0})[0]
    [('layers.0.kernel', 1.0), ('step', 0)]

    Raises:
        LayoutError: two leaves would have the same path, so no rule could tell them apart.
    """
    flat = flat_nodes(tree) if is_leaf is None else tree
    with_keys, structure = jax.tree_util.tree_flatten_with_path(flat, is_leaf)
    key_paths = [_in_users_node(key_path) for key_path, _ in with_keys]
    siblings = collections.Counter(key_path[:-1] for key_path in key_paths)
    paths = [join_parts(_parts(key_path, siblings)) for key_path in key_paths]
    if any(isinstance(path[-1], LabelKey) for path in key_paths if path) and len(set(paths)) < len(paths):
        # Labels that some arrays share do not tell them apart: their positions stay in front.
        paths = [join_parts(tuple(part for key in path for part in _key_parts(key))) for path in key_paths]
    _check_unique(paths)
    leaves = [leaf for _, leaf in with_keys]
    return list(zip(paths, leaves, strict=True)), structure if flat is tree else jax.tree.structure(tree)


def map_with_paths(function: Callable[[str, Any], Any], tree: Any) -> Any:
    """Return the tree with each leaf replaced by `function(path, leaf)`."""
    named, structure = flatten_paths(tree)
    return jax.tree_util.tree_unflatten(structure, [function(path, leaf) for path, leaf in named])


def join_parts(parts: Parts) -> str:
    """Join parts to a dotted path, quoting where needed.

    >>> join_parts(("params", "mlp/~/linear_0", "a.b"))
    "params.mlp/~/linear_0.'a.b'"
    """
    return ".".join(_quoted(part) for part in parts)


@functools.lru_cache(maxsize=65536)
def split_path(path: str) -> Parts:
    """Split a dotted path into its parts: the inverse of `join_parts`.

    >>> split_path("params.'a.b'.kernel")
    ('params', 'a.b', 'kernel')
    """
    return tuple(_unquoted(piece) for piece in _PIECE.findall(path)) if path else ()


def under(root: str, path: str) -> str:
    """Return a path below a root; either may be empty."""
    return join_parts(split_path(root) + split_path(path))


def _in_users_node(key_path: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the keys of a leaf as they are in the user's own node, where a `FlatNode` stands for one."""
    if key_path and isinstance(key_path[-1], PathKeys):
        return (*key_path[:-1], *key_path[-1].keys)
    return key_path


def _parts(key_path: tuple[Any, ...], siblings: collections.Counter) -> Parts:
    # Only a lone `.value` is a box: with siblings it is a field that happens to have this name.
    if len(key_path) > 1 and _is_box_value(key_path[-1]) and siblings[key_path[:-1]] == 1:
        key_path = key_path[:-1]
    if len(key_path) > 1 and isinstance(key_path[-1], LabelKey) and _is_number(key_path[-2]):
        key_path = (*key_path[:-2], key_path[-1])  # the label stands for the position in a list
    return tuple(part for key in key_path for part in _key_parts(key))


def _is_number(key: Any) -> bool:
    return isinstance(key, jax.tree_util.SequenceKey | jax.tree_util.FlattenedIndexKey)


def _key_parts(key: Any) -> Parts:
    return tuple(filter(None, re.split(r"[/.]", key.label))) if isinstance(key, LabelKey) else (_part(key),)


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
    return str(key)  # the key type of a custom node, of which nothing is known but its text


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


def _check_unique(paths: list[str]) -> None:
    twice = [path for path, count in collections.Counter(paths).items() if count > 1]
    if twice:
        raise LayoutError(
            f"{counted(len(twice), 'path names', 'paths name')} more than one leaf, so no rule could tell these apart:",
            [
                Problem("same path twice", path, "two keys of the tree have the same text", "rename one of the keys")
                for path in twice
            ],
        )


def matches(pattern: str, path: str) -> bool:
    """Return whether a pattern matches a whole path; both ends are anchored.

    >>> matches("params.**.kernel", "params.dense.kernel"), matches("params.**.kernel", "params.kernel")
    (True, True)
    >>> matches("kernel", "params.dense.kernel"), matches("layers.*.w*", "layers.0.weight")
    (False, True)
    """
    return matches_parts(pattern_parts(pattern), split_path(path))


def matches_parts(pattern: Parts, path: Parts) -> bool:
    """Return whether a pattern, split by `pattern_parts`, matches a path that is split too.

    >>> matches_parts(("**", "k*"), ("dense", "kernel"))
    True
    """
    return _match(_pieces(pattern), path)


def first_part(pattern: str) -> str | None:
    """Return the first part of a pattern if it is a plain name; None if it begins with a wildcard.

    >>> first_part("opt_state.**"), first_part("**.kernel"), first_part("opt*.x")
    ('opt_state', None, None)
    """
    parts = pattern_parts(pattern)
    if not parts or _is_wild(parts[0]):
        return None
    return split_path(parts[0])[0]


def only_path(pattern: str) -> Parts | None:
    """Split the one path that a pattern without wildcards matches; None for other patterns.

    >>> only_path("params.'a.b'"), only_path("params.*")
    (('params', 'a.b'), None)
    """
    return None if any(map(_is_wild, pattern_parts(pattern))) else split_path(pattern)


@functools.lru_cache(maxsize=4096)
def pattern_parts(pattern: str) -> tuple[str, ...]:
    """Split a pattern into its parts as written, with their quotes.

    >>> pattern_parts("params.**.'a.b'")
    ('params', '**', "'a.b'")
    """
    return tuple(_PIECE.findall(pattern))


def pattern_problem(pattern: str) -> str | None:
    """Return what is wrong with the syntax of a pattern, or None."""
    if not pattern:
        return "the pattern is empty; `**` matches every leaf"
    if pattern.startswith(".") or pattern.endswith(".") or ".." in re.sub(r"'[^']*'", "q", pattern):
        return "a dot at an end, or two dots in a row, leaves an empty part"
    if ".".join(pattern_parts(pattern)) != pattern or any(map(_is_half_quoted, pattern_parts(pattern))):
        return "a quote opens or closes inside a part; quote whole parts: params.'a.b'.kernel"
    wrong = [part for part in pattern_parts(pattern) if _is_wild(part) and "**" in part and part != "**"]
    if wrong:
        return f"`**` stands for whole parts, so it cannot share a part: {wrong[0]!r}; write `*` inside a part"
    return None


def _is_wild(part: str) -> bool:
    return "*" in part and not part.startswith("'")


def _is_half_quoted(part: str) -> bool:
    return "'" in part and not _QUOTED.fullmatch(part)


Pieces = tuple[tuple[str, ...] | None, ...]
"""The parts of a pattern, each as the texts between its stars; None for `**`."""


@functools.lru_cache(maxsize=4096)
def _pieces(pattern: Parts) -> Pieces:
    return tuple(None if part == "**" else _part_pieces(part) for part in pattern)


def _match(pattern: Pieces, path: Parts) -> bool:
    """Match greedily from the left; a part that does not fit moves the last `**` on by one part, as in globbing.

    Only the last `**` is ever moved: whatever an earlier one could take in addition, the last one can take too. So a
    match takes at most the product of the two lengths, whatever the pattern.
    """
    if None not in pattern and len(pattern) != len(path):
        return False
    i = j = 0
    wildcard, resume = -1, 0
    while j < len(path):
        pieces = pattern[i] if i < len(pattern) else ()
        if pieces is None:
            wildcard, resume = i, j
            i += 1
        elif pieces and _part_matches(pieces, path[j]):
            i, j = i + 1, j + 1
        elif wildcard >= 0:
            resume += 1
            i, j = wildcard + 1, resume
        else:
            return False
    return all(pieces is None for pieces in pattern[i:])


def _part_matches(pieces: tuple[str, ...], part: str) -> bool:
    """Return whether a part is these texts in order with anything between them; each is searched for once."""
    if len(pieces) == 1:
        return part == pieces[0]
    first, *middle, last = pieces
    if len(part) < len(first) + len(last) or not (part.startswith(first) and part.endswith(last)):
        return False
    at, end = len(first), len(part) - len(last)
    for piece in middle:
        at = part.find(piece, at, end)
        if at < 0:
            return False
        at += len(piece)
    return True


_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'")


def _part_pieces(part: str) -> tuple[str, ...]:
    """Return the texts between the stars of a part; in a quoted part a star is a plain character."""
    return split_path(part) if part.startswith("'") else tuple(part.split("*"))
