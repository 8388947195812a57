"""Call an optimizer: for the state that it begins with, and for updates, with what it takes, or an error in words.

Some parameters are overwritten with their gradient: statistics of FP8, which no optimizer may see. A layer in FP8
returns its new scales and histories of largest values where a gradient would stand (Flax's collection
`_overwrite_with_gradient`, Haliax's `OverwriteWithGradient`). They are values, so nothing may divide or add them: what
the whole batch gives is the largest of what its parts give.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from outlay.core.error_types import Problem, ProgramError
from outlay.core.paths import flatten_paths, map_with_paths, split_path, under
from outlay.core.quantities import counted

_AGGREGATES = "DifferentiallyPrivateAggregateState"
_PER_EXAMPLE = "outlay.train_step(..., per_example_gradients=True)"
_NUM_SHOWN = 8
"""The number of parameters that an error about an optimizer lists."""

_LONGEST = 240
"""The number of characters quoted from another library's message."""

_COLLECTION = "_overwrite_with_gradient"
_NODE = "OverwriteWithGradient"


def optimizer_state(optimizer: optax.GradientTransformation, params: Any) -> Any:
    """Initialize the state of an optimizer for these parameters.

    Raises:
        ProgramError: its masks or labels are for other parameters, or one of them matches nothing.
    """
    paths = [path for path, _ in flatten_paths(params)[0]]
    have = f"the parameters are {', '.join(paths[:_NUM_SHOWN])}{', ...' if len(paths) > _NUM_SHOWN else ''}"
    try:
        made = optimizer.init(without_overwritten(params))
    except (TypeError, ValueError, KeyError) as error:
        words = " ".join(str(error).split())[:_LONGEST]
        raise ProgramError(
            f"the optimizer does not fit these parameters: {words}\n  {have}"
            "\n  fix: use masks and labels with the structure of the parameters, or functions that return such trees"
        ) from error
    ends = [path for path, _ in jax.tree_util.tree_flatten_with_path(params)[0]]
    of_masks = jax.tree_util.tree_flatten_with_path(made, is_leaf=lambda node: isinstance(node, optax.MaskedState))[0]
    for path, node in of_masks:
        if not isinstance(node, optax.MaskedState):
            continue
        inside = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda one: isinstance(one, optax.MaskedNode))[0]
        num_masked = sum(isinstance(leaf, optax.MaskedNode) for _, leaf in inside)
        # The optimizer's state repeats the paths of the parameters below paths of its own.
        is_used = any(
            leaf_path[len(leaf_path) - len(end) :] == end and not isinstance(leaf, optax.MaskedNode)
            for leaf_path, leaf in inside
            for end in ends
        )
        if num_masked and not is_used:
            where = "opt_state." + jax.tree_util.keystr(path, simple=True, separator=".")
            raise ProgramError(
                f"a mask of the optimizer matches nothing: none of {counted(len(paths), 'parameter')} is in "
                f"{where.rstrip('.')}, and masked parameters keep their gradients as updates\n  {have}"
                "\n  fix: a mask or a label that selects one of these, or leave this part of the optimizer out"
            )
    return made


def as_optimized(grads: Any) -> Any:
    """Return the gradients that the optimizer takes: with lookahead, for the fast parameters."""
    return grads.fast if isinstance(grads, optax.LookaheadParams) else grads


def update(
    optimizer: optax.GradientTransformationExtraArgs,
    grads: Any,
    state: Any,
    params: Any,
    extras: Mapping[str, Any],
    *,
    per_example: bool,
) -> tuple[Any, Any]:
    """Return the updates of the parameters, and the new state of the optimizer.

    Args:
        optimizer: the optimizer.
        grads: the gradients.
        state: its state.
        params: the parameters.
        extras: what some optimizers take besides, by name; one that does not take an argument is not given it.
        per_example: whether the gradients have an entry per example in front.

    Raises:
        ProgramError: the optimizer needs something else, or its updates are not of the parameters' shapes.
    """
    if not per_example and _aggregates(state):
        raise ProgramError(
            "the optimizer aggregates one gradient per example (optax.contrib.differentially_private_aggregate), and "
            f"is given their mean, which it would take for examples\n  fix: {_PER_EXAMPLE}"
        )
    try:
        updates, new_state = _called(optimizer.update, grads, state, params, dict(extras))
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise _refused(error) from error
    _check_updates(updates, params, per_example=per_example)
    return updates, new_state


def _aggregates(state: Any) -> bool:
    def is_state(node: Any) -> bool:
        return type(node).__name__ == _AGGREGATES

    return any(map(is_state, jax.tree.leaves(state, is_leaf=is_state)))


def _called(call: Callable[..., Any], grads: Any, state: Any, params: Any, extras: dict[str, Any]) -> Any:
    """Call an update with as many of the extra arguments as it takes.

    Some optimizers say by their type that they take any argument and do not (optax.contrib.sam), others pass all on to
    such a one (optax.chain), so no signature tells.
    """
    while True:
        try:
            return call(grads, state, params, **extras)
        except TypeError as error:
            unknown = set(re.findall(r"'(\w+)'", str(error))) & extras.keys()
            if not unknown or not re.search("unexpected keyword argument", str(error), re.IGNORECASE):
                raise
            extras = {name: value for name, value in extras.items() if name not in unknown}


def _refused(error: Exception) -> ProgramError:
    words = " ".join(str(error).split())[:_LONGEST]
    if isinstance(error, AttributeError) and re.search("no attribute '(fast|slow)'", words):
        return ProgramError(
            "optax.lookahead optimizes two copies of the parameters, and init makes one\n"
            "  fix: init returns optax.LookaheadParams.init_synced(params), and the loss is given the fast ones"
        )
    given = (
        "outlay.train_step passes value= (the mean loss), grad=, value_fn= and grad_fn= (the mean loss and the "
        "gradients of other parameters, over the same batch)"
    )
    lacking = re.search(r"(\S+\(\)) missing \d+ required keyword-only arguments?: (.*)", str(error))
    what = f"the optimizer's {lacking[1]} needs {lacking[2]}" if lacking else f"the optimizer cannot update: {words}"
    return ProgramError(
        f"{what}; {given}\n  fix: use another optimizer, or write your own step that passes these to optimizer.update"
    )


def _check_updates(updates: Any, params: Any, *, per_example: bool) -> None:
    """Raise unless there is one number for each of the parameters: `optax.apply_updates` would broadcast in silence."""
    have, need = ({path: jnp.shape(leaf) for path, leaf in flatten_paths(tree)[0]} for tree in (updates, params))
    fix = (
        "an optimizer that aggregates examples first: optax.chain(optax.contrib.differentially_private_aggregate(...), "
        "...); or leave out per_example_gradients"
        if per_example
        else f"if it aggregates examples, {_PER_EXAMPLE}; else an optimizer whose updates have the parameters' shapes"
    )
    problems = [
        Problem("other shape", f"params.{path}", f"shape {shape}, its update {have.get(path, 'is missing')}", fix)
        for path, shape in need.items()
        if have.get(path) != shape
    ]
    if problems:
        raise ProgramError(
            f"the optimizer returns updates that are not those of the parameters: {counted(len(problems), 'problem')}",
            problems,
        )


def overwritten_paths(params: Any) -> frozenset[str]:
    """Return the paths of the parameters that are overwritten with their gradient.

    >>> sorted(overwritten_paths({"params": {"w": 1.0}, "_overwrite_with_gradient": {"scale": 1.0}}))
    ['_overwrite_with_gradient.scale']
    """
    paths = {path for path, _ in flatten_paths(params)[0] if _COLLECTION in split_path(path)}
    for root, node in flatten_paths(params, is_leaf=_is_node)[0]:
        if _is_node(node):
            paths |= {under(root, path) for path, _ in flatten_paths(node)[0]}
    return frozenset(paths)


def _is_node(node: Any) -> bool:
    return any(kind.__name__ == _NODE for kind in type(node).__mro__)


def without_overwritten(params: Any, paths: Collection[str] | None = None) -> Any:
    """Return parameters, or their gradients, as an optimizer may see them: zero where they are overwritten.

    With zeros for gradient and value, no norm, weight decay or distance of any optimizer is another for them.

    Args:
        params: the parameters.
        paths: the overwritten ones; None for `overwritten_paths`.
    """
    at = overwritten_paths(params) if paths is None else paths
    return map_with_paths(lambda path, leaf: jnp.zeros_like(leaf) if path in at else leaf, params) if at else params


def overwrite(params: Any, new: Any, paths: Collection[str]) -> Any:
    """Return parameters with the leaves at some paths from another tree of the same structure."""
    if not paths:
        return params
    values: Mapping[str, jax.Array] = dict(flatten_paths(new)[0])
    return map_with_paths(lambda path, leaf: values[path].astype(leaf.dtype) if path in paths else leaf, params)


def check_overwritten(
    paths: Collection[str], params: Any, *, accumulate: int, groups: int | None, reduction: str | None
) -> None:
    """Raise for a step in which layers return statistics of less than the whole batch.

    Args:
        paths: the paths of the overwritten parameters.
        params: all parameters.
        accumulate: the number of microbatches.
        groups: the number of groups.
        reduction: how the loss reduces a batch.

    Raises:
        ProgramError: with the options to leave out.
    """
    odd = {
        f"groups={groups}": groups is not None,
        f'reduction="mean" with accumulate={accumulate}': reduction == "mean" and accumulate > 1,
        "optax.lookahead": isinstance(params, optax.LookaheadParams),
    }
    if wrong := [words for words, is_used in odd.items() if is_used]:
        are = f"{counted(len(paths), 'parameter')} such as params.{min(paths)}"
        raise ProgramError(
            f"{are} {'is' if len(paths) == 1 else 'are'} overwritten with a gradient, which is a value of the whole "
            f"batch, and {' and '.join(wrong)} would add several of them\n"
            "  fix: leave it out, and return one loss per sample"
        )
