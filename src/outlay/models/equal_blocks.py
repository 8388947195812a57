"""Check that blocks are equal layers: one structure, arrays of the same shapes, and all else equal."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from outlay.core.array_leaves import dtype_and_shape, is_array
from outlay.core.error_types import Problem, ProgramError
from outlay.core.paths import flatten_paths, under
from outlay.core.quantities import counted
from outlay.core.same_values import is_same


def check_blocks(blocks: Sequence[Any], each: Mapping[str, Any], *, is_called: bool) -> None:
    """Raise if blocks are not the same layer with other numbers.

    Args:
        blocks: the layers.
        each: what each takes of its own, by name.
        is_called: whether the blocks themselves are called.
    """
    problems = _differences(blocks) or [*_of_other_lengths(each, len(blocks))]
    if is_called and not callable(blocks[0]):
        what = f"it is {type(blocks[0]).__name__}, which cannot be called"
        fix = "say how a layer computes: outlay.layers(blocks, x, run=lambda block, x: ...)"
        problems.append(Problem("not a layer", "blocks.0", what, fix))
    if problems:
        raise ProgramError(f"{counted(len(blocks), 'block')} cannot run as layers:", problems)


def as_list(blocks: Any) -> list[Any]:
    """Return blocks as a list.

    Raises:
        ProgramError: they are none, or there are none.
    """
    is_list = isinstance(blocks, Sequence) and not isinstance(blocks, str)
    if not is_list:
        what = f"blocks is {type(blocks).__name__}; it is a list or tuple of layers"
        fix = "list the layers in their order: [params['layer_0'], params['layer_1']], or model.layers of a Sequential"
        if is_stacked(blocks) or isinstance(blocks, Mapping):
            fix += "; layers that are stacked already are scanned over: jax.lax.scan"
        raise ProgramError("these are no layers:", [Problem("not a list", "blocks", what, fix)])
    if not len(blocks):
        fix = "leave the call out where a model has no layers"
        raise ProgramError("these are no layers:", [Problem("no layers", "blocks", "it is empty", fix)])
    linen = sys.modules.get("flax.linen")
    if linen is not None and isinstance(blocks[0], linen.Module):
        what = f"{type(blocks[0]).__name__} is a module of Linen, whose arrays are not in it"
        fix = 'nn.scan(Block, variable_axes={"params": 0}, split_rngs={"params": True}, length=...), which stacks them'
        raise ProgramError("these are no layers:", [Problem("not a tree", "blocks.0", what, fix)])
    return list(blocks)


def _differences(blocks: Sequence[Any]) -> list[Problem]:
    """Return what keeps blocks from being the same layer with other numbers."""
    first, structure = flatten_paths(blocks[0])[0], jax.tree.structure(blocks[0])
    problems: list[Problem] = []
    for number, block in enumerate(blocks[1:], 1):
        at, leaves = f"blocks.{number}", flatten_paths(block)[0]
        of_first, others = dict(first), dict(leaves)
        for path in [*of_first, *(path for path in others if path not in of_first)]:
            if path not in of_first or path not in others:
                have, lack = (at, "blocks.0") if path in others else ("blocks.0", at)
                what = f"{have} has such a leaf and {lack} has none"
            elif _same_kind(of_first[path], others[path]):
                continue
            else:
                what = f"it is {_in_words(others[path])}, and in blocks.0 {_in_words(of_first[path])}"
            problems.append(Problem("another block", under(at, path), what, _EQUAL))
        setting = "" if problems else _other_setting(structure, jax.tree.structure(block))
        if setting:
            problems.append(Problem("another block", at, setting, _EQUAL))
    return problems


_EQUAL = "make all blocks alike, and run others by a call of their own: x = outlay.layers(blocks[:4], x)"


def _of_other_lengths(each: Mapping[str, Any], num: int) -> Iterator[Problem]:
    for path, leaf in flatten_paths(each)[0]:
        if jnp.shape(leaf)[:1] != (num,):
            what = f"its shape is {jnp.shape(leaf)}, and there are {num} layers"
            fix = f"one entry of dim 0 for each layer ({num}), or an argument of its own if all take the same"
            yield Problem("not one for each layer", under("each", path), what, fix)


def check_handed_on(x: Any, result: Any, at: str) -> None:
    """Raise if a layer returns something of another form than it takes."""
    problems = list(_changes(x, result, at))
    if problems:
        raise ProgramError("a layer does not hand on what it takes:", problems)


def _changes(x: Any, result: Any, at: str) -> Iterator[Problem]:
    if jax.tree.structure(x) != jax.tree.structure(result):
        what = f"it takes {jax.tree.structure(x)} and returns {jax.tree.structure(result)}"
        yield Problem("another structure", at, what, "return what the next layer takes as x, and nothing else")
        return
    for (path, before), (_, after) in zip(flatten_paths(x)[0], flatten_paths(result)[0], strict=True):
        have, get = (dtype_and_shape(one) if is_array(one) else _brief(one) for one in (before, after))
        if have != get:
            what = f"it takes {under('x', path)} as {have} and returns {get}"
            fix = (
                f"x.astype({get.partition('[')[0]!r}) before the layers"
                if jnp.shape(before) == jnp.shape(after)
                else ""
            )
            yield Problem("another shape", at, what, fix or "layers of one width; project before and after them")


def _same_kind(one: Any, other: Any) -> bool:
    if is_stacked(one) and is_stacked(other):
        return _in_words(one) == _in_words(other)
    if is_stacked(one) or is_stacked(other):
        return False
    return one is other or is_same(one, other)


def _other_setting(one: Any, other: Any) -> str:
    """Say where two structures with the same leaves part; empty if nowhere."""
    if one == other:
        return ""
    (kind, of_one), (other_kind, of_other) = (each.node_data() or (type(None), None) for each in (one, other))
    if kind is not other_kind:
        return f"it holds {other_kind.__name__} where blocks.0 has {kind.__name__}"
    if not is_same(of_one, of_other):
        of_one, of_other = _parting(of_one, of_other)
        return f"a setting of {kind.__name__} is {_brief(of_other)}, and in blocks.0 {_brief(of_one)}"
    pairs = zip(one.children(), other.children(), strict=True)
    return next(filter(None, (_other_setting(*pair) for pair in pairs)), "")


def _parting(one: Any, other: Any) -> tuple[Any, Any]:
    """Return the first parts in which two values differ."""
    if type(one) is type(other) and isinstance(one, Mapping) and [*one] == [*other]:
        return _parting([*one.values()], [*other.values()])
    if type(one) is type(other) and isinstance(one, tuple | list) and len(one) == len(other):
        return _parting(*next(pair for pair in zip(one, other, strict=True) if not is_same(*pair)))
    return one, other


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:120]}..."


def _in_words(leaf: Any) -> str:
    return dtype_and_shape(leaf) if is_stacked(leaf) else _brief(leaf)


def is_stacked(leaf: Any) -> bool:
    """Return whether a leaf of a block is an array, of which each layer has its own."""
    return isinstance(leaf, jax.Array | np.ndarray | np.generic)
