"""What the nodes of a tree hold besides arrays: flags, sizes, functions, and what is the same object as another."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CellType, CodeType, FunctionType, MethodType
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
        difference
        for path in {**old, **new}
        for difference in _differences(path, old.get(path, _NOTHING), new.get(path, _NOTHING), frozenset())
    ]


def listed_differences(differences: list[StaticDifference], first: str = "planned", second: str = "given") -> list[str]:
    """Write differences a line each, the first few of them."""
    shown = differences[:_NUM_SHOWN]
    lines = [f"  {each.path or 'the tree itself'}: {first} {each.planned}, {second} {each.given}" for each in shown]
    if more := len(differences) - len(shown):
        lines[-1] += f", and {counted(more, 'attribute')} more"
    return lines


def structure_lines(expected: Any, returned: Any) -> list[str]:
    """Write the structures of two trees, a line each; of large ones what differs."""
    structures = [str(jax.tree.structure(tree)) for tree in (expected, returned)]
    if max(map(len, structures)) > _LONGEST and (differences := static_differences(expected, returned)):
        return listed_differences(differences, "took", "returned")
    return [f"  {word:<8} {text[:_LONGEST]}" for word, text in zip(("took", "returned"), structures, strict=True)]


Parts = tuple[str, ...]
_Facts = Iterator[tuple[Parts, Any]]


def _facts(node: Any, path: Parts, seen: dict[int, Parts], above: frozenset[int]) -> _Facts:
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


def _differences(
    path: Parts, before: Any, after: Any, around: frozenset[tuple[int, int]]
) -> Iterator[StaticDifference]:
    """Yield how two values differ; of functions and objects, which of what they hold does.

    Args:
        path: where they are.
        before: the first value.
        after: the second one.
        around: the pairs of values that hold these, by `id`; a pair inside of itself ends there.
    """
    if is_same(before, after):
        return
    pair, inner = (id(before), id(after)), []
    (kind, old), (other_kind, new) = _held(before), _held(after)
    if pair not in around and is_same(kind, other_kind):
        inner = [
            difference
            for name in {**old, **new}
            for difference in _differences(
                (*path, name), old.get(name, _NOTHING), new.get(name, _NOTHING), around | {pair}
            )
        ]
    yield from inner or [_difference(path, before, after)]


def _difference(path: Parts, before: Any, after: Any) -> StaticDifference:
    old, new = _words(before), _words(after)
    if old == new:
        old, new = f"{old}{_line_of(before)}", f"another{_line_of(after)}"
    return StaticDifference(join_parts(path), old, new, _is_flag(before) and _is_flag(after))


def _held(value: Any) -> tuple[Any, dict[str, Any]]:
    """Return what kind of value this is, and what it holds by name; a value of another kind differs as a whole."""
    kind = type(value)
    if isinstance(value, MethodType):  # `model.apply` of a model with other settings is another function
        inner, parts = _held(value.__self__)
        return (value.__func__, inner), parts or {"__self__": value.__self__}
    if isinstance(value, functools.partial):
        return (kind, value.func), {**{str(number): one for number, one in enumerate(value.args)}, **value.keywords}
    if isinstance(value, FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        return value.__code__, {name: cell.cell_contents for name, cell in cells if _is_set(cell)}
    if isinstance(value, dict):
        return kind, {str(key): one for key, one in value.items()}
    if isinstance(value, list | tuple):
        return kind, {str(number): one for number, one in enumerate(value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return kind, {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    if kind.__eq__ is object.__eq__ and not isinstance(value, type):
        return kind, dict(getattr(value, "__dict__", {}))
    return kind, {}


def _is_set(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not _NOTHING
    except ValueError:
        return False


def _line_of(value: Any) -> str:
    code = getattr(value, "__code__", None)
    return f" ({Path(code.co_filename).name}:{code.co_firstlineno})" if isinstance(code, CodeType) else ""


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
    if isinstance(value, MethodType):
        return f"{type(value.__self__).__qualname__}.{value.__func__.__name__}"
    name = getattr(value, "__qualname__", None)
    return " ".join((name.replace(".<locals>", "") if isinstance(name, str) else repr(value)).split())[:60]
