"""Take a user's state apart into arrays and the rest, as the jit of its own framework does.

`jax.jit` takes plain trees as they are. Flax NNX modules are graphs: one variable that stands at two places stays one
(`nnx.split`, as in `nnx.jit`). Equinox modules also hold functions and settings (`eqx.partition`, as in
`eqx.filter_jit`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from outlay.core.paths import flatten_paths


@dataclass(frozen=True)
class Apart:
    """A tree taken apart.

    Attributes:
        arrays: its arrays, each once, as a tree.
        whole: makes the tree again from such arrays.
        is_graph: whether an array may stand at several paths.
    """

    arrays: Any
    whole: Callable[[Any], Any]
    is_graph: bool = False

    @property
    def leaves(self) -> list[Any]:
        """The arrays as a list."""
        return jax.tree.leaves(self.arrays)

    def rebuilt(self, leaves: Any) -> Any:
        """Return the tree with other arrays in their places."""
        return self.whole(jax.tree.unflatten(jax.tree.structure(self.arrays), leaves))

    @property
    def places(self) -> list[tuple[str, int]]:
        """Every path, and which of the leaves stands there."""
        if not self.is_graph:
            return [(path, number) for number, (path, _) in enumerate(flatten_paths(self.arrays)[0])]
        return flatten_paths(self.rebuilt(range(len(self.leaves))))[0]


def take_apart(tree: Any) -> Apart:
    """Take a tree apart.

    Args:
        tree: what an init or a step of the user returned.

    >>> apart = take_apart({"w": jnp.ones(3), "step": 0})
    >>> apart.places
    [('step', 0), ('w', 1)]
    """
    nnx, equinox = sys.modules.get("flax.nnx"), sys.modules.get("equinox")
    if nnx is not None and _has(tree, _is_graph_node):
        numbers = (bool, int, float, complex)  # NNX would take those beside its modules for settings
        arrays = jax.tree.map(
            lambda leaf: jnp.asarray(leaf) if isinstance(leaf, numbers) else leaf, tree, is_leaf=_is_graph_node
        )
        definition, state = nnx.split(arrays)
        return Apart(state, lambda state: nnx.merge(definition, state), is_graph=True)
    if equinox is not None and _has(tree, _is_module):
        settings = _of_modules(tree, lambda module: equinox.filter(module, _is_array, inverse=True), lambda leaf: None)
        arrays = _of_modules(tree, lambda module: equinox.filter(module, _is_array), lambda leaf: leaf)
        return Apart(arrays, lambda arrays: equinox.combine(arrays, settings))
    return Apart(tree, lambda tree: tree)


def _has(tree: Any, is_leaf: Callable[[Any], bool]) -> bool:
    return any(is_leaf(leaf) for leaf in jax.tree.leaves(tree, is_leaf=is_leaf))


def _is_graph_node(node: Any) -> bool:
    nnx = sys.modules["flax.nnx"]
    return isinstance(node, nnx.Pytree | nnx.Variable)


def _is_module(node: Any) -> bool:
    return isinstance(node, sys.modules["equinox"].Module)


def _of_modules(tree: Any, of_module: Callable[[Any], Any], of_leaf: Callable[[Any], Any]) -> Any:
    return jax.tree.map(lambda node: of_module(node) if _is_module(node) else of_leaf(node), tree, is_leaf=_is_module)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray)
