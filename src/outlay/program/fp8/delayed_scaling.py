"""Delayed scaling: scales of products in FP8 from what was multiplied in the steps before.

A step that has the scales need not look at an array before it rounds it. What it finds of the array is for the steps
after it, and that is known of gradients only in a backward pass. So a product takes a row of zeros for each of its
three arrays, and what would be the row's gradient is a one at the place of
the array's scale. Over layers of a stack, microbatches and devices such rows are added up as gradients are; the largest
scale that occurred is the last place that is not zero.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from outlay.core.constrain import KeepsHistory
from outlay.core.error_types import Problem, ProgramError
from outlay.core.flat_nodes import PathKeys
from outlay.core.paths import flatten_paths, split_path, under
from outlay.core.quantities import counted
from outlay.layout.fp8 import Fp8
from outlay.layout.layout import Layout
from outlay.layout.placement import is_optimizer
from outlay.layout.rule import Rule
from outlay.program.fp8.fp8_scaling import SCALES
from outlay.program.gradient_splits import BESIDE

LENGTH = 1024
"""The number of steps that are remembered, as by default in Transformer Engine and Flax."""
OTHER, PARAMETER, GRADIENT = range(3)
"""The rows of a leaf: what it is multiplied with, the leaf itself, the gradient that comes in."""


def begun(state: Any, layout: Layout, *, is_new: bool) -> Any:
    """Return a state with room for the scales of the rules with delayed scaling.

    Args:
        state: the state.
        layout: the layout.
        is_new: whether no step has been taken; otherwise scales that it has stay.

    Raises:
        ProgramError: the state has no place for them.
    """
    nodes, structure = flatten_paths(state, is_leaf=_keeps_history)
    with_room = [_with_room(node, path, layout, is_new) if _keeps_history(node) else node for path, node in nodes]
    if not any(_keeps_history(node) and node.scaling is not None for node in with_room):
        raise no_place(layout)
    return structure.unflatten(with_room)


def _keeps_history(node: Any) -> bool:
    return isinstance(node, KeepsHistory)


def _with_room(node: Any, path: str, layout: Layout, is_new: bool) -> Any:
    if node.scaling is not None and not is_new:
        return node
    num = len(delayed_leaves(node.params, under(path, "params"), layout))
    return dataclasses.replace(node, scaling=jnp.zeros((num, 3, LENGTH), jnp.float32) if num else None)


def delayed_leaves(params: Any, root: str, layout: Layout) -> list[str]:
    """Return the paths of the parameters that delayed scaling is asked for, in the order of their rows.

    Args:
        params: the parameters.
        root: their path in the state.
        layout: the layout.
    """
    rules = [rule for rule in layout if isinstance(rule.placement, Fp8)]

    def is_asked_for(path: str) -> bool:
        first = next((rule for rule in rules if rule.matches(path, "state")), None)
        return first is not None and is_delayed(first) and not is_optimizer(path)

    paths = [under(root, path) for path, _ in flatten_paths(params)[0]]
    return sorted(filter(is_asked_for, paths))


def is_delayed(rule: Rule) -> bool:
    """Return whether a rule asks for delayed scaling."""
    return isinstance(rule.placement, Fp8) and rule.placement.scaling == "delayed"


def no_place(layout: Layout) -> ProgramError:
    """Return the error for a step that keeps no history."""
    problems = [
        Problem(
            "no place for a history",
            rule.written,
            "delayed scaling keeps the scales of earlier steps, and no state of an outlay.train_step has this leaf",
            "outlay.train_step and outlay.init_state, whose state has a place for them"
            '\nor scaling="current", which looks at the values themselves'
            "\nor layers that hold the history, such as flax.linen.fp8_ops.Fp8DirectDotGeneralOp, and no rule",
        )
        for rule in layout
        if is_delayed(rule)
    ]
    return ProgramError(f"{counted(len(problems), 'rule')} of the layout cannot be applied to this step:", problems)


def histories(state: Any, layout: Layout) -> tuple[list[str], jax.Array] | None:
    """Return the paths of the leaves with delayed scaling in a state, and their rows; None if it has none."""
    nodes = [node for node in flatten_paths(state, is_leaf=_keeps_history)[0] if _keeps_history(node[1])]
    with_scales = [(path, node) for path, node in nodes if node.scaling is not None]
    if not with_scales:
        return None
    paths = [leaf for path, node in with_scales for leaf in delayed_leaves(node.params, under(path, "params"), layout)]
    return paths, jnp.concatenate([node.scaling for _, node in with_scales])


def scales_of(history: jax.Array) -> jax.Array:
    """Return the scale of each row: the largest of its steps, and 1 before the first step.

    >>> scales_of(jnp.array([[0.5, 4.0, 0.0], [0.0, 0.0, 0.0]])).tolist()
    [4.0, 1.0]
    """
    largest = jnp.max(history, axis=-1)
    return jnp.where(largest > 0, largest, 1.0)


def after(history: jax.Array, tallies: jax.Array) -> jax.Array:
    """Return a history with one more step in front.

    Args:
        history: scales (..., steps).
        tallies: how often each of `SCALES` occurred (..., scales), in any unit.
    """
    newest = jnp.max(jnp.where(tallies > 0, SCALES, 0.0), axis=-1, keepdims=True)
    return jnp.concatenate([newest, history[..., :-1]], axis=-1)


@jax.tree_util.register_pytree_with_keys_class
class Beside:
    """Parameters as leaves, each under its own path, and one further array that is differentiated with them.

    Args:
        leaves: the leaves, the array last.
        structure: the structure of the parameters.
        keys: a key for each leaf.
    """

    def __init__(self, leaves: Sequence[Any], structure: Any, keys: tuple[PathKeys, ...]) -> None:
        self._leaves, self._structure, self._keys = leaves, structure, keys

    @classmethod
    def of(cls, params: Any, array: Any) -> Beside:
        """Put an array beside parameters; its path is `BESIDE`."""
        named, structure = flatten_paths(params)
        keys = (
            PathKeys(tuple(map(jax.tree_util.DictKey, split_path(path)))) for path in [*(p for p, _ in named), BESIDE]
        )
        return cls([*(leaf for _, leaf in named), array], structure, tuple(keys))

    @property
    def params(self) -> Any:
        """The parameters."""
        return self._structure.unflatten(self._leaves[:-1])

    @property
    def array(self) -> Any:
        """The array beside them."""
        return self._leaves[-1]

    def tree_flatten_with_keys(self) -> tuple[Sequence[tuple[PathKeys, Any]], Any]:
        """Return the leaves with their keys."""
        return list(zip(self._keys, self._leaves, strict=True)), (self._structure, self._keys)

    @classmethod
    def tree_unflatten(cls, of: tuple[Any, tuple[PathKeys, ...]], leaves: Sequence[Any]) -> Beside:
        """Make it from leaves."""
        return cls(leaves, *of)
