"""Nodes of users' own classes as flat lists of leaves, so that these classes are built with arrays and nothing else.

A tree of shapes, shardings or plans has the structure of a user's tree, and JAX would build it with the user's classes,
whose constructors may compute or check. So inside Outlay a `FlatNode` stands where such a node stands, with the same
leaves under the same paths. Users get their own nodes back, filled with arrays or tracers, as `jax.jit` fills them.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax

from outlay.core.jax_tracing import fills_fields

_CONTAINERS = (tuple, list, dict, collections.OrderedDict, collections.defaultdict, type(None))
_ARE_FILLED = ("equinox.", "flax.", "jax.", "outlay.")
"""Packages whose nodes JAX rebuilds without a constructor, or with one that takes anything."""


@dataclasses.dataclass(frozen=True)
class PathKeys:
    """The key of a leaf below a `FlatNode`: the keys that lead to it in the user's node."""

    keys: tuple[Any, ...]

    def __str__(self) -> str:
        return jax.tree_util.keystr(self.keys)


class _Definition:
    """What a node is besides its leaves; JAX compares and prints it as part of a tree's structure."""

    __slots__ = ("keys", "structure")

    def __init__(self, structure: Any, keys: tuple[PathKeys, ...]) -> None:
        self.structure, self.keys = structure, keys

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
    def of(cls, with_keys: Iterable[tuple[Any, Any]], structure: Any) -> FlatNode:
        """Return what stands for a node that `jax.tree_util.tree_flatten_with_path` has taken apart."""
        paths, leaves = zip(*with_keys, strict=True) if with_keys else ((), ())
        return cls(_Definition(structure, tuple(map(PathKeys, paths))), leaves)

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
    return structure.unflatten(FlatNode.of(*flatten(node)) if _computes(node) else node for node in nodes)


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


def _is(one: Any, other: Any) -> bool:
    return one is other


def _computes(node: Any) -> bool:
    """Return whether JAX rebuilds this node by calling a class that may do more than take its leaves."""
    return not _is_filled(type(node)) and not jax.tree_util.all_leaves([node])


@functools.lru_cache(maxsize=4096)
def _is_filled(node_type: type) -> bool:
    if node_type in _CONTAINERS or node_type.__module__.startswith(_ARE_FILLED):
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
