"""Trees that hold NNX objects, as trees of arrays: an object that stands at several places has one leaf, at the first.

JAX flattens an NNX module once for each place where it stands, so that tied weights come apart, and a generator of
random numbers that two layers share becomes two. NNX's own transformations keep such a tree as a graph: `nnx.split`
takes the arrays out of it, each once, and `nnx.merge` puts them back. Trees without NNX objects are left as they are.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import jax


@dataclass(frozen=True)
class Objects:
    """The NNX objects of a tree without their arrays, and where they stand.

    Attributes:
        containers: the structure of the tree around the objects, each of which is one leaf of it.
        positions: the leaves of it that are objects.
        definition: the `nnx.GraphDef` of all of them together, which knows what they share.
    """

    containers: Any
    positions: tuple[int, ...]
    definition: Any

    def merged(self, arrays: Any) -> Any:
        """Return new objects with these arrays, in the containers of the tree."""
        nnx = sys.modules["flax.nnx"]
        leaves = self.containers.flatten_up_to(arrays)
        states = {n: leaves[position] for n, position in enumerate(self.positions) if leaves[position] is not None}
        # Copied, since a step writes to the variables that it is given.
        merged = nnx.merge(self.definition, nnx.State(states), copy=True)
        for number, position in enumerate(self.positions):
            leaves[position] = merged[number]
        return self.containers.unflatten(leaves)


def take_objects_out(tree: Any) -> tuple[Objects, Any]:
    """Split a tree that holds NNX objects into these and a tree of arrays, in which an `nnx.State` stands for each.

    An object that is a part of an earlier one has no arrays of its own, and None stands for it.

    Returns:
        The objects, and the arrays.

    Example:
        >>> from flax import nnx
        >>> model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        >>> objects, arrays = take_objects_out({"model": model, "tied": [model.kernel]})
        >>> [leaf.shape for leaf in jax.tree.leaves(arrays)], arrays["tied"]
        ([(3,), (2, 3)], [None])
        >>> tree = objects.merged(arrays)
        >>> tree["tied"][0] is tree["model"].kernel
        True
    """
    nnx = sys.modules["flax.nnx"]
    leaves, containers = jax.tree.flatten(tree, is_leaf=lambda node: isinstance(node, nnx.Pytree | nnx.Variable))
    positions = tuple(n for n, leaf in enumerate(leaves) if isinstance(leaf, nnx.Pytree | nnx.Variable))
    definition, states = nnx.split(tuple(leaves[position] for position in positions))
    for number, position in enumerate(positions):
        leaves[position] = states.get(number)
    return Objects(containers, positions, definition), containers.unflatten(leaves)


def rearranged(arrays: Any, objects: Objects, other: Objects | None) -> Any:
    """Return arrays in the containers of other objects, which hold as many leaves, with other settings perhaps."""
    if other is None or other.containers.num_leaves != objects.containers.num_leaves:
        return arrays
    return other.containers.unflatten(objects.containers.flatten_up_to(arrays))
