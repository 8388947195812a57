"""Nodes of users' own classes as flat lists of leaves, so that these classes are built with arrays and nothing else.

A tree of shapes, shardings or plans has the structure of a user's tree, and JAX would build it with the user's classes,
whose constructors may compute or check. So inside Outlay a `FlatNode` stands where such a node stands, with the same
leaves under the same paths. Users get their own nodes back, filled with arrays or tracers, as `jax.jit` fills them.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from outlay.core.jax_tracing import fills_fields

_CONTAINERS = (tuple, list, dict, collections.OrderedDict, collections.defaultdict, type(None))
_LEAVES = (jax.Array, Tracer, np.ndarray, np.generic, bool, int, float, complex, str)
_ARE_FILLED = ("equinox.", "flax.", "jax.", "outlay.")
"""Packages whose nodes JAX rebuilds without a constructor, or with one that takes anything."""


@dataclasses.dataclass(frozen=True)
class PathKeys:
    """The key of a leaf below a `FlatNode`: the keys that lead to it in the user's node."""

    keys: tuple[Any, ...]

    def __str__(self) -> str:
        return jax.tree_util.keystr(self.keys)


@dataclasses.dataclass(frozen=True)
class LabelKey:
    """The key of an array with a label of its own, such as `mlp/Affine_0/Linear.weights` of penzai."""

    label: str

    def __str__(self) -> str:
        return self.label


class _Definition:
    """What a node is besides its leaves; JAX compares and prints it as part of a tree's structure."""

    __slots__ = ("annotations", "keys", "structure")

    def __init__(self, structure: Any, keys: tuple[PathKeys, ...], annotations: tuple[Any, ...]) -> None:
        self.structure, self.keys, self.annotations = structure, keys, annotations

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Definition) and self.structure == other.structure

    def __hash__(self) -> int:
        return hash(self.structure)

    def __repr__(self) -> str:
        return repr(self.structure)


@jax.tree_util.register_pytree_with_keys_class
class FlatNode:
    """Stands for a node of a user's class, with its leaves in JAX's order.

    Attributes:
        leaves: the leaves, or what stands for them: shapes, shardings, plans.
    """

    __slots__ = ("_definition", "leaves")

    def __init__(self, definition: _Definition, leaves: Iterable[Any]) -> None:
        self._definition, self.leaves = definition, list(leaves)

    @classmethod
    def of(cls, node: Any, with_keys: Sequence[tuple[Any, Any]], structure: Any) -> FlatNode:
        """Return the `FlatNode` of a node that `jax.tree_util.tree_flatten_with_path` has flattened."""
        from outlay.core.annotated_boxes import annotation_of

        paths, leaves = [path for path, _ in with_keys], [leaf for _, leaf in with_keys]
        annotations = [annotation for _, annotation in _around(node, paths, annotation_of)]
        labels = _around(node, paths, _label_of)
        keys = [
            (*path[:depth], LabelKey(label)) if label and depth < len(path) else path
            for path, (depth, label) in zip(paths, labels, strict=True)
        ]
        return cls(_Definition(structure, tuple(map(PathKeys, keys)), tuple(annotations)), leaves)

    @property
    def annotations(self) -> tuple[Any, ...]:
        """For each leaf the `Annotation` of its box in the user's node; False where there is none."""
        return tuple(annotation or False for annotation in self._definition.annotations)

    def with_leaves(self, leaves: Iterable[Any]) -> FlatNode:
        """Return the node with other leaves."""
        return FlatNode(self._definition, leaves)

    def rebuilt(self, leaf_of: Callable[[Any], Any] = lambda leaf: leaf) -> Any:
        """Return the user's node, with `leaf_of(leaf)` for each leaf: arrays or tracers."""
        return self._definition.structure.unflatten(map(leaf_of, self.leaves))

    def tree_flatten(self) -> tuple[list[Any], _Definition]:
        """Return the leaves, and all else."""
        return self.leaves, self._definition

    def tree_flatten_with_keys(self) -> tuple[list[tuple[Any, Any]], _Definition]:
        """Return the leaves with their keys, and all else."""
        return list(zip(self._definition.keys, self.leaves, strict=True)), self._definition

    @classmethod
    def tree_unflatten(cls, definition: _Definition, leaves: Iterable[Any]) -> FlatNode:
        """Return the node with other leaves."""
        return cls(definition, leaves)

    def __repr__(self) -> str:
        return f"FlatNode({self._definition!r}, {self.leaves!r})"


def flat_nodes(tree: Any, flatten: Callable[[Any], tuple[Any, Any]] = jax.tree_util.tree_flatten_with_path) -> Any:
    """Return a tree with a `FlatNode` in place of each node whose class may do more than take its leaves.

    Args:
        tree: the tree; it is returned as it is if there is no such node.
        flatten: takes such a node apart into leaves with their keys, and a structure.
    """
    nodes, structure = jax.tree.flatten(tree, is_leaf=_computes)
    if not any(map(_computes, nodes)):
        return tree
    return structure.unflatten(FlatNode.of(node, *flatten(node)) if _computes(node) else node for node in nodes)


def users_nodes(tree: Any, leaf_of: Callable[[Any], Any] = lambda leaf: leaf) -> Any:
    """Return a tree of arrays with the user's own nodes in place of each `FlatNode`.

    Args:
        tree: the tree; it is returned as it is if there is no such node.
        leaf_of: what to put in place of a leaf of such a node.
    """
    nodes, structure = jax.tree.flatten(tree, is_leaf=is_flat_node)
    if not any(map(is_flat_node, nodes)):
        return tree
    return structure.unflatten(node.rebuilt(leaf_of) if is_flat_node(node) else node for node in nodes)


def is_flat_node(node: Any) -> bool:
    """Return whether this stands for a node of a user's class."""
    return isinstance(node, FlatNode)


def has_flat_nodes(tree: Any) -> bool:
    """Return whether some node of a tree stands for one of a user's class."""
    return any(map(is_flat_node, jax.tree.leaves(tree, is_leaf=is_flat_node)))


def has_classes(tree: Any) -> bool:
    """Return whether a tree holds more than Python's containers, arrays and shapes, such as a library's boxes."""
    return any(map(_is_of_class, jax.tree.leaves(tree, is_leaf=_is_of_class)))


def _is_of_class(node: Any) -> bool:
    return type(node) not in _CONTAINERS and not isinstance(node, (*_LEAVES, jax.ShapeDtypeStruct))


def flatten_like(tree: Any) -> Callable[[Any], list[Any]]:
    """Return a function that flattens trees of this structure, faster than `jax.tree.leaves`, and refuses others."""
    return jax.tree.leaves if has_flat_nodes(tree) else jax.tree.structure(tree).flatten_up_to


class ByStructure:
    """Converts trees of one structure from call to call: it walks through the first one, and knows the others.

    Args:
        convert: the conversion, which keeps the leaves and their order.
    """

    def __init__(self, convert: Callable[[Any], Any]) -> None:
        self._convert = convert
        self._structures: tuple[Any, Any] | None = None

    def __call__(self, tree: Any) -> Any:
        """Return the tree, converted."""
        leaves, structure = jax.tree.flatten(tree)
        if self._structures and structure == self._structures[0]:
            return self._structures[1].unflatten(leaves)
        converted = self._convert(tree)
        others, given = jax.tree.flatten(converted)
        if len(others) == len(leaves) and all(map(_is, others, leaves)):
            self._structures = (structure, given)
        return converted


def _around(node: Any, paths: Iterable[Any], look: Callable[[Any], Any]) -> list[tuple[int, Any]]:
    """Return for each leaf what `look` finds in the node or in one below it, around the leaf, and how deep that is."""
    nodes = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda one: bool(look(one)))[0]
    matches = [(path, value) for path, one in nodes if (value := look(one))]
    outer = ((one for one in matches if path[: len(one[0])] == one[0]) for path in paths)
    return [(len(one[0]), one[1]) if (one := next(ones, None)) else (0, None) for ones in outer]


def _label_of(node: Any) -> str | None:
    """Return the label of a value that has one, as in penzai."""
    label = getattr(node, "label", None)
    return label if isinstance(label, str) and hasattr(node, "value") else None


def _is(one: Any, other: Any) -> bool:
    return one is other


def _computes(node: Any) -> bool:
    """Return whether JAX rebuilds this node by calling a class that may do more than take its leaves."""
    return not _is_filled(type(node)) and not jax.tree_util.all_leaves([node])


@functools.lru_cache(maxsize=4096)
def _is_filled(node_type: type) -> bool:
    if node_type in _CONTAINERS or node_type.__module__.startswith(_ARE_FILLED) or issubclass(node_type, _LEAVES):
        return True
    if issubclass(node_type, tuple) and hasattr(node_type, "_fields"):
        return _is_plain_named_tuple(node_type)
    # Modules of NNX and Equinox are made anew without their constructors.
    if any(base.__module__.startswith(("flax.nnx.", "equinox.")) for base in node_type.__mro__[1:]):
        return True
    return fills_fields(node_type)


def _is_plain_named_tuple(node_type: type) -> bool:
    """Return whether a named tuple is made as `NamedTuple` makes it, and not by a subclass's own `__new__`."""
    maker = next(base for base in node_type.__mro__ if "__new__" in vars(base))
    return "_fields" in vars(maker) and node_type.__init__ is object.__init__
