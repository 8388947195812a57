"""What a batch, the parameters and the loss must be for a training step; each mistake named with its numbers."""

from __future__ import annotations

import collections
import contextlib
import inspect
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from outlay.core.error_types import Problem, ProgramError
from outlay.core.paths import flatten_paths, split_path
from outlay.core.quantities import counted
from outlay.core.suggest import did_you_mean

RESERVED = ("loss", "weight", "step", "seconds")
"""Names that the step and the metrics file give themselves."""
OF_A_RUN = ("step", "seconds")
"""Those of them that a run gives to the metrics of any step."""


def num_samples(batch: Any) -> int:
    """The leading dim that all leaves of a batch share.

    Raises:
        ProgramError: a leaf has none, or they differ.
    """
    shapes = {path: jnp.shape(leaf) for path, leaf in flatten_paths(batch)[0]}
    lengths = collections.Counter(shape[0] for shape in shapes.values() if shape)
    if not lengths:
        raise ProgramError("the batch has no array with a leading dim, so it holds no samples")
    usual = lengths.most_common(1)[0][0]
    odd = {path: shape for path, shape in shapes.items() if shape[:1] != (usual,)}
    if odd:
        lines = "".join(f"\n  batch.{path}: shape {shape}" for path, shape in odd.items())
        raise ProgramError(
            f"every array of a batch holds one entry per sample, here {usual}; "
            f"{counted(len(odd), 'array does', 'arrays do')} not:{lines}"
            f"\n  fix: give it leading dim {usual}, or move it out of the batch"
        )
    return usual


def check_trainable(params: Any) -> None:
    """Raise when parameters cannot be trained because they are no floats, naming each."""
    dtypes = [(path, jnp.result_type(leaf)) for path, leaf in flatten_paths(params)[0]]
    odd = [(path, dtype) for path, dtype in dtypes if not jnp.issubdtype(dtype, jnp.inexact)]
    if odd:
        lines = "".join(f"\n  params.{path}: {dtype}" for path, dtype in odd)
        raise ProgramError(
            f"{counted(len(odd), 'parameter')} without a gradient, because only floats have one:{lines}"
            "\n  fix: keep them out of params: nnx.split(model, nnx.Param, ...), "
            "eqx.partition(model, eqx.is_inexact_array)"
        )


def optimizer_state(optimizer: optax.GradientTransformation, params: Any) -> Any:
    """The state that an optimizer has for parameters.

    Raises:
        ProgramError: its masks or labels are for other parameters, or one of them matches nothing.
    """
    paths = [path for path, _ in flatten_paths(params)[0]]
    have = f"the parameters are {', '.join(paths[:_NUM_SHOWN])}{', ...' if len(paths) > _NUM_SHOWN else ''}"
    try:
        made = optimizer.init(params)
    except (TypeError, ValueError, KeyError) as error:
        words = " ".join(str(error).split())[:_LONGEST]
        raise ProgramError(
            f"the optimizer cannot be made for these parameters: {words}\n  {have}"
            "\n  fix: masks and labels that are trees like the parameters, or functions that make such a tree of them"
        ) from error
    ends = [path for path, _ in jax.tree_util.tree_flatten_with_path(params)[0]]
    of_masks = jax.tree_util.tree_flatten_with_path(made, is_leaf=lambda node: isinstance(node, optax.MaskedState))[0]
    for path, node in of_masks:
        if not isinstance(node, optax.MaskedState):
            continue
        inside = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda one: isinstance(one, optax.MaskedNode))[0]
        num_masked = sum(isinstance(leaf, optax.MaskedNode) for _, leaf in inside)
        is_used = any(
            leaf_path[len(leaf_path) - len(end) :] == end and not isinstance(leaf, optax.MaskedNode)
            for leaf_path, leaf in inside
            for end in ends
        )
        if num_masked and not is_used:
            where = "opt_state." + jax.tree_util.keystr(path, simple=True, separator=".")
            raise ProgramError(
                f"a mask of the optimizer matches nothing: of {counted(len(paths), 'parameter')} none has a part in "
                f"{where.rstrip('.')}, and what is masked keeps its gradient as its update\n  {have}"
                "\n  fix: a mask that is True, or a label, for one of these; or leave this part of the optimizer out"
            )
    return made


_NUM_SHOWN = 8
"""Parameters that are named where an optimizer does not fit them."""

_LONGEST = 240
"""Letters of another library's message that are quoted."""


def check_model_state(model_state: Any, *, taken: bool) -> None:
    """Raise when the state of a model is there and nobody takes it, or is not there.

    Args:
        model_state: that of the step's state.
        taken: whether the loss takes one.
    """
    if taken and model_state is None:
        raise ProgramError(
            "the loss takes a model state, and the step's state has none\n"
            "  fix: outlay.init_state(init, optimizer, model_state=True), where init(key) gives (params, model_state)"
        )
    if not taken and model_state is not None:
        raise ProgramError(
            "the step's state has a model state of "
            f"{counted(len(jax.tree.leaves(model_state)), 'leaf', 'leaves')}, and the loss takes "
            "none\n  fix: outlay.train_step(loss, optimizer, model_state=True), with loss(params, model_state, "
            "batch, keys) -> (losses, metrics, model_state)"
        )


def check_metric_names(asked: Any, known: tuple[str, ...]) -> None:
    """Raise for metrics of a step that do not exist."""
    if isinstance(asked, str):
        raise ProgramError(f"metrics={asked!r} is one name, and a list is asked for\n  fix: metrics=[{asked!r}]")
    odd = [name for name in asked if name not in known]
    if odd:
        lines = "".join(f"\n  {name!r}: {did_you_mean(str(name), known)}" for name in odd)
        raise ProgramError(
            f"{counted(len(odd), 'metric')} that a step cannot say of itself:{lines}\n"
            "  other metrics are the loss's: return losses, {name: one number per sample}"
        )


def check_names_differ(of_loss: Collection[str], of_step: Collection[str]) -> None:
    """Raise when a loss gives metrics the names of those that the step is asked for."""
    if both := [name for name in of_step if name in of_loss]:
        raise ProgramError(f"the metrics {both} are both the loss's and the step's\n  fix: rename the loss's")


def called(
    loss: Callable[..., Any], params: Any, state: tuple[Any, ...], batch: Any, keys: Any, expected: tuple[int, ...]
) -> tuple[dict[str, Any], Any]:
    """What a loss function gives: `loss` and metrics, for each sample or the batch, and a new model state.

    Args:
        loss: the user's.
        params: the parameters.
        state: the model state, where the loss takes one; else nothing.
        batch: the batch.
        keys: a key for every sample, or None.
        expected: the shape that each of the results must have.

    Raises:
        ProgramError: it takes or gives something else; every array at fault is named.
    """
    takes = "params, model_state, batch, keys" if state else "params, batch, keys"
    gives = "losses, metrics, model_state" if state else "losses, metrics"
    with contextlib.suppress(ValueError):  # some callables have no signature to look at
        signature = inspect.signature(loss)
        try:
            signature.bind(params, *state, batch, keys)
        except TypeError as error:
            raise ProgramError(
                f"the loss takes {signature}, and is called as loss({takes}): {error}"
                f"\n  fix: def loss({takes}): ...; what draws nothing at random leaves keys unused"
                + ("" if state else ", and what has a model state is asked for it by model_state=True")
            ) from None
    result = loss(params, *state, batch, keys)
    if not (isinstance(result, tuple) and len(result) == 2 + len(state)):
        number = "triple" if state else "pair"
        raise ProgramError(
            f"loss({takes}) must return a {number} ({gives}); it returned {_in_words(result)}"
            f"\n  fix: return losses, {{}}{', model_state' if state else ''}"
        )
    losses, metrics = result[:2]
    if not isinstance(metrics, Mapping):
        raise ProgramError(
            f"loss({takes}) must return ({gives}) with metrics a dict, "
            f"not a {type(metrics).__name__}\n  fix: return losses, {{}}{', model_state' if state else ''}"
        )
    taken = [name for name in metrics if name in RESERVED]
    if taken:
        raise ProgramError(f"the metrics {taken} have names that the step gives itself {RESERVED}: rename them")
    _check_one_per_example(losses, metrics, expected)
    values = {"loss": losses}
    rows = {name: jnp.shape(value)[len(expected) :] for name, value in metrics.items()}
    values |= {name: jnp.broadcast_to(value, (*expected, *rows[name])) for name, value in metrics.items()}
    return values, _as_before(result[2], state[0]) if state else None


def _as_before(new: Any, old: Any) -> Any:
    """A new model state of the old one's types.

    Raises:
        ProgramError: leaves were forgotten, added, or have other shapes or dtypes; all are named.
    """
    have, had = ({path: _typed(x) for path, x in flatten_paths(tree)[0]} for tree in (new, old))
    odd = [path for path in {**had, **have} if had.get(path) != have.get(path)]
    if odd:
        lines = "".join(
            f"\n  model_state.{path}: took {had.get(path, 'nothing')}, returned {have.get(path, 'nothing')}"
            for path in odd
        )
        raise ProgramError(
            "the loss returns a model state unlike the one it took: "
            f"{counted(len(odd), 'leaf differs', 'leaves differ')}:{lines}"
            "\n  fix: return every leaf of model_state, new or as it was, with its shape and dtype; what has an entry "
            "for each sample is reduced over them first"
        )
    if jax.tree.structure(new) != jax.tree.structure(old):
        raise ProgramError(
            "the loss returns a model state of the same leaves in another container:\n"
            f"  took     {jax.tree.structure(old)}\n  returned {jax.tree.structure(new)}\n"
            "  fix: build the new state with the type of the old one"
        )
    return jax.tree.map(lambda x: x if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else _strong(x), new)


def _strong(x: Any) -> jax.Array:
    return jax.lax.convert_element_type(x, x.dtype)  # not weakly typed, as the result of a Python number would be


def _typed(x: Any) -> str:
    return f"{jnp.result_type(x)}{list(jnp.shape(x))}"


_NUMBERS = (bool, int, float, np.bool_, np.integer, np.floating)


def _check_one_per_example(losses: Any, metrics: Mapping[str, Any], expected: tuple[int, ...]) -> None:
    """Raise when there is not one number per sample, or per batch; a number known to Python is the same for all.

    A metric may be a row of numbers per sample, as a histogram is.
    """
    arrays = (jax.Array, np.ndarray)
    odd = {
        f"metric {name!r}": value
        for name, value in metrics.items()
        if not (isinstance(value, _NUMBERS) or (isinstance(value, arrays) and _is_metric(value.shape, expected)))
    }
    if not (isinstance(losses, arrays) and losses.shape == expected):
        odd = {"the losses": losses, **odd}
    if not odd:
        return
    lines = "".join(f"\n  {name}: {_in_words(value)}" for name, value in odd.items())
    shapes = {name: tuple(value.shape) for name, value in odd.items() if hasattr(value, "shape")}
    what = f"one number per sample, shape {expected}" if expected else "one number for the batch, as it has a reduction"
    fixes = _fixes(shapes, expected, holds_none=any(value is None for value in odd.values()))
    raise ProgramError(f"the loss must return {what}; {len(odd)} are other:{lines}\n  fix: " + "; ".join(fixes))


def _is_metric(shape: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    return shape == expected or (bool(expected) and shape[:1] == expected and len(shape) == 2)


def _fixes(shapes: Mapping[str, tuple[int, ...]], expected: tuple[int, ...], *, holds_none: bool) -> Iterator[str]:
    if holds_none:
        yield "leave out what is None"
    if not expected:
        yield "reduce it over the batch, as the loss: x.mean(); or leave reduction= out, and the mean to the step"
        return
    yield "leave the mean over samples to the step, which takes it over the global batch"
    wide = next((shape for shape in shapes.values() if shape[:1] == expected and len(shape) > 1), None)
    if wide is not None:
        axes = tuple(range(1, len(wide)))
        yield f"take the mean over the other dims: .mean({axes[0] if len(axes) == 1 else axes})"
    if shapes.get("the losses") == ():
        yield "or say what the one number is: outlay.train_step(..., reduction='mean')"
    elif any(shape == () for shape in shapes.values()):
        yield (
            "what is of no sample, such as the norm of a parameter, can be had from the state after a step, or by "
            "name: outlay.train_step(..., metrics=['param_norm'])"
        )


def _in_words(value: Any) -> str:
    if hasattr(value, "shape"):
        return f"shape {tuple(value.shape)}"
    return f"a tuple of {len(value)}" if isinstance(value, tuple) else f"a {type(value).__name__}"


MOST_NUMBERS = 256
"""Numbers that one metric may hold, such as the counts of a histogram: each stands in every line of the metrics."""


def as_metrics(outputs: Any) -> dict[str, Any]:
    """A step's outputs by name: those of nested dictionaries by path, and without what is None."""
    parts = [(split_path(path), path, leaf) for path, leaf in flatten_paths(outputs)[0]]
    return {names[0] if len(names) == 1 else path: leaf for names, path, leaf in parts}


def check_recordable(outputs: Any) -> None:
    """Raise when a step's outputs cannot be the metrics of a run, naming each.

    Args:
        outputs: as arrays or shapes.

    Raises:
        ProgramError: they are no dictionary of numbers, or have the names that a run gives itself.
    """
    if not isinstance(outputs, Mapping):
        raise ProgramError(
            f"a run records what a step returns beside its state, by name; it returns {_in_words(outputs)}"
            '\n  fix: return state, {"loss": loss}'
        )
    problems = []
    for name, leaf in as_metrics(outputs).items():
        if name in OF_A_RUN:
            problems.append(Problem("taken name", name, "a run writes this itself", "rename it"))
        elif not _is_real(leaf.dtype) or len(leaf.shape) > (name != "loss") or math.prod(leaf.shape) > MOST_NUMBERS:
            what = (
                f"a metric of a run is a real number, or up to {MOST_NUMBERS} in a row but for the loss; this is of "
                f"shape {tuple(leaf.shape)}, {leaf.dtype}"
            )
            problems.append(Problem("no metric", name, what, "return its mean, or a histogram of it, or leave it out"))
    if problems:
        head = f"{counted(len(problems), 'output')} of the step cannot be metrics of a run:"
        raise ProgramError("\n".join([head, *(problem.text() for problem in problems)]))


def _is_real(dtype: Any) -> bool:
    return any(jnp.issubdtype(dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_))
