"""What the nodes of a tree hold besides arrays: flags, sizes, functions, and what is the same object as another."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import MethodType
from typing import Any

import jax
import numpy as np

from outlay.core.array_leaves import Static
from outlay.core.paths import join_parts
from outlay.core.quantities import counted
from outlay.core.same_values import is_same

_NUM_SHOWN = 3
"""The number of differences that a message shows: with its first line and its fix, five lines."""

_LONGEST = 600
"""The number of characters above which the structure of a tree is not printed."""

_NOTHING = object()


@dataclass(frozen=True)
class _Same:
    """Stands for an object that stands elsewhere as well.

    Attributes:
        path: the first place where it stands.
    """

    path: str


@dataclass(frozen=True)
class StaticDifference:
    """One attribute that is not an array, in two trees.

    Attributes:
        path: where it is, such as `model.norm.use_running_average`.
        planned: its value in the first tree, in words.
        given: its value in the second one.
        is_flag: whether both values are True, False or None.
    """

    path: str
    planned: str
    given: str
    is_flag: bool


def static_differences(planned: Any, given: Any) -> list[StaticDifference]:
    """List what differs between two trees besides their arrays.

    Functions are the same if their code and what they have closed over are: each call of init makes new ones.

    >>> import equinox as eqx
    >>> drop = eqx.nn.Dropout(0.5)
    >>> static_differences({"drop": drop}, {"drop": eqx.nn.inference_mode(drop)})
    [StaticDifference(path='drop.inference', planned='False', given='True', is_flag=True)]
    """
    old, new = (dict(_facts(tree, (), {}, frozenset())) for tree in (planned, given))
    return [
        StaticDifference(join_parts(path), _words(before), _words(after), _is_flag(before) and _is_flag(after))
        for path in {**old, **new}
        if not is_same(before := old.get(path, _NOTHING), after := new.get(path, _NOTHING))
    ]


def listed_differences(differences: list[StaticDifference], first: str = "planned", second: str = "given") -> list[str]:
    """Write differences a line each, the first few of them."""
    shown = differences[:_NUM_SHOWN]
    lines = [f"  {each.path or 'the tree itself'}: {first} {each.planned}, {second} {each.given}" for each in shown]
    if more := len(differences) - len(shown):
        lines[-1] += f", and {counted(more, 'attribute')} more"
    return lines


def structure_lines(took: Any, returned: Any) -> list[str]:
    """Write the structures of two trees, a line each; of large ones what differs."""
    structures = [str(jax.tree.structure(tree)) for tree in (took, returned)]
    if max(map(len, structures)) > _LONGEST and (differences := static_differences(took, returned)):
        return listed_differences(differences, "took", "returned")
    return [f"  {word:<8} {text[:_LONGEST]}" for word, text in zip(("took", "returned"), structures, strict=True)]


Path = tuple[str, ...]
_Facts = Iterator[tuple[Path, Any]]


def _facts(node: Any, path: Path, seen: dict[int, Path], above: frozenset[int]) -> _Facts:
    """Yield path and value of everything in a tree that is not an array; for an object seen before, where that was.

    Args:
        node: the tree, or a part of it.
        path: its path.
        seen: the objects that keep their identity, by `id`, with their first path.
        above: the nodes around this one, by `id`; a node inside of itself ends there.
    """
    if isinstance(node, jax.Array | jax.ShapeDtypeStruct | np.ndarray) or id(node) in above:
        return
    if isinstance(node, Static):
        node = node.value
    nnx = sys.modules.get("flax.nnx")
    is_object = nnx is not None and isinstance(node, nnx.Pytree | nnx.Variable)
    if is_object:
        if id(node) in seen:
            yield path, _Same(join_parts(seen[id(node)]))
            return
        seen[id(node)] = path
    children = _children_of_object(node) if is_object else _children(node)
    if children is None:
        yield path, node
        return
    yield path, type(node)
    for name, child in children.items():
        yield from _facts(child, (*path, name), seen, above | {id(node)})


def _children_of_object(node: Any) -> dict[str, Any]:
    """Return the attributes of an NNX object; of a variable the metadata, but for where its array is to live."""
    if hasattr(node, "get_metadata"):
        names = [name for name in node.get_metadata() if "shard" not in name and "mesh" not in name]
        return {name: node.get_metadata()[name] for name in names}
    return {name: value for name, value in vars(node).items() if not name.startswith("_pytree__")}


def _children(node: Any) -> dict[str, Any] | None:
    """Return the parts of a node by name; None for what has none."""
    if isinstance(node, type):
        return None
    if isinstance(node, MethodType):  # `model.apply` of a model with other settings is another function
        return {**(_children(node.__self__) or {}), "__func__": node.__func__}
    if isinstance(node, dict):
        return {str(key): value for key, value in node.items()}
    if isinstance(node, tuple) and (names := getattr(node, "_fields", None)):
        return dict(zip(names, node, strict=True))
    if isinstance(node, list | tuple):
        return {str(number): value for number, value in enumerate(node)}
    if dataclasses.is_dataclass(node):
        return {field.name: getattr(node, field.name, None) for field in dataclasses.fields(node)}
    with_paths, structure = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda part: part is not node)
    if jax.tree_util.treedef_is_leaf(structure):
        return None
    parts = {jax.tree_util.keystr(key, simple=True): part for key, part in with_paths}
    return {**parts, "structure": structure}


def _is_flag(value: Any) -> bool:
    return value is None or isinstance(value, bool)


def _words(value: Any) -> str:
    if value is _NOTHING:
        return "nothing"
    if isinstance(value, _Same):
        return f"the same as {value.path}"
    name = getattr(value, "__name__", None)
    return " ".join((name if isinstance(name, str) else repr(value)).split())[:60]
