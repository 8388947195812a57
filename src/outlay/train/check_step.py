"""Check the batch, the parameters, the loss and the metrics of a training step."""

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

from outlay.core.array_leaves import is_real
from outlay.core.error_types import Problem, ProgramError
from outlay.core.paths import flatten_paths, split_path
from outlay.core.quantities import counted
from outlay.core.static_facts import structure_lines
from outlay.core.suggest import did_you_mean

RESERVED = ("loss", "weight", "step", "seconds")
"""Metric names that the step and the metrics file use themselves."""
OF_A_RUN = ("step", "seconds")
"""The reserved names that a run adds to the metrics of any step."""


def num_samples(batch: Any) -> int:
    """Return the leading dim that all leaves of a batch share.

    Raises:
        ProgramError: a leaf has no dims, or the leading dims differ.
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
            f"every array of a batch has one entry per sample, here {usual}; "
            f"{counted(len(odd), 'array does', 'arrays do')} not:{lines}"
            f"\n  fix: give it the leading dim {usual}, or move it out of the batch"
        )
    return usual


def check_trainable(params: Any) -> None:
    """Raise if parameters are not floats and so cannot be trained, and list them."""
    dtypes = [(path, jnp.result_type(leaf)) for path, leaf in flatten_paths(params)[0]]
    odd = [(path, dtype) for path, dtype in dtypes if not jnp.issubdtype(dtype, jnp.inexact)]
    if odd:
        lines = "".join(f"\n  params.{path}: {dtype}" for path, dtype in odd)
        raise ProgramError(
            f"{counted(len(odd), 'parameter')} without a gradient: only floats have one:{lines}"
            "\n  fix: keep them out of params: nnx.split(model, nnx.Param, ...), "
            "eqx.partition(model, eqx.is_inexact_array)"
        )


def check_model_state(model_state: Any, *, taken: bool) -> None:
    """Raise if a model state is missing, or present but not used by the loss.

    Args:
        model_state: the model state in the step's state.
        taken: whether the loss takes one.
    """
    if taken and model_state is None:
        raise ProgramError(
            "the loss takes a model state, but the step's state has none\n"
            "  fix: outlay.init_state(init, optimizer, model_state=True), where init(key) gives (params, model_state)"
        )
    if not taken and model_state is not None:
        raise ProgramError(
            "the step's state has a model state of "
            f"{counted(len(jax.tree.leaves(model_state)), 'leaf', 'leaves')}, but the loss takes "
            "none\n  fix: outlay.train_step(loss, optimizer, model_state=True), with loss(params, model_state, "
            "batch, keys) -> (losses, metrics, model_state)"
        )


def check_per_example(**asked: Any) -> None:
    """Raise for options of a step that mix samples, which then have no gradient each."""
    usual = {"accumulate": 1, "model_state": False, "groups": None, "reduction": None}
    odd = [f"{name}={value!r}" for name, value in asked.items() if value != usual[name]]
    if odd:
        raise ProgramError(
            f"per_example_gradients with {', '.join(odd)}: every sample's gradient is of its own loss, and all of "
            f"them are there at once\n  fix: leave out {', '.join(odd)}, and return one loss per sample"
        )


def check_metric_names(asked: Any, known: tuple[str, ...]) -> None:
    """Raise for unknown metrics of a step."""
    if isinstance(asked, str):
        raise ProgramError(f"metrics={asked!r} must be a list of names\n  fix: metrics=[{asked!r}]")
    odd = [name for name in asked if name not in known]
    if odd:
        lines = "".join(f"\n  {name!r}: {did_you_mean(str(name), known)}" for name in odd)
        raise ProgramError(
            f"{counted(len(odd), 'unknown metric')} of the step:{lines}\n"
            "  other metrics come from the loss: return losses, {name: one number per sample}"
        )


def check_names_differ(of_loss: Collection[str], of_step: Collection[str]) -> None:
    """Raise if a metric of the loss has the name of a requested metric of the step."""
    if both := [name for name in of_step if name in of_loss]:
        raise ProgramError(f"the loss and the step both return the metrics {both}\n  fix: rename those of the loss")


def called(
    loss: Callable[..., Any],
    params: Any,
    state: tuple[Any, ...],
    batch: Any,
    keys: Any,
    expected: tuple[int, ...],
    *,
    counts: bool = False,
    num_parts: int = 1,
) -> tuple[dict[str, Any], Any]:
    """Call a loss function and check its results: `loss` and metrics, per sample or per batch, and a new model state.

    Args:
        loss: the user's loss function.
        params: the parameters.
        state: the model state in a tuple, empty if the loss takes none.
        batch: the batch.
        keys: a key for every sample, or None.
        expected: the shape that each result must have.
        counts: whether the loss may return its mean as `(sum, count)`; the count is then the value `weight`.
        num_parts: the number of parts of the batch whose metrics will be added up. A Python number is the same in each,
            and no sum over samples, so it is given in equal parts.

    Raises:
        ProgramError: the loss takes or returns something else; the message lists every wrong array.
    """
    takes = "params, model_state, batch, keys" if state else "params, batch, keys"
    gives = "losses, metrics, model_state" if state else "losses, metrics"
    with contextlib.suppress(ValueError):  # some callables have no signature to look at
        signature = inspect.signature(loss)
        # Before the call, since a TypeError from inside of the loss looks the same.
        try:
            signature.bind(params, *state, batch, keys)
        except TypeError as error:
            raise ProgramError(
                f"the loss takes {signature}, but is called as loss({takes}): {error}"
                f"\n  fix: def loss({takes}): ...; a deterministic loss ignores keys"
                + ("" if state else ", and a loss with a model state needs model_state=True")
            ) from None
    result = loss(params, *state, batch, keys)
    if not (isinstance(result, tuple) and len(result) == 2 + len(state)):
        number, also = ("triple", ", model_state") if state else ("pair", "")
        # One number for the whole batch is what most losses return.
        mean = (
            f'; for a mean, return mean, {{}}{also} with train_step(..., reduction="mean")'
            if _is_number(result)
            else ""
        )
        raise ProgramError(
            f"loss({takes}) must return a {number} ({gives}); it returned {_in_words(result)}"
            f"\n  fix: return losses, {{}}{also}, with one loss for each sample{mean}"
        )
    losses, metrics = result[:2]
    if not isinstance(metrics, Mapping):
        raise ProgramError(
            f"loss({takes}) must return ({gives}) with metrics a dict, "
            f"not a {type(metrics).__name__}\n  fix: return losses, {{}}{', model_state' if state else ''}"
        )
    taken = [name for name in metrics if name in RESERVED]
    if taken:
        raise ProgramError(f"the metrics {taken} have reserved names {RESERVED}\n  fix: rename them")
    values = {"loss": losses}
    if counts and isinstance(losses, tuple) and len(losses) == 2:
        count = losses[1]
        if isinstance(count, int | float | np.number):  # as x.size is: each sample's part of it, added up
            num = num_samples(batch)
            count = jnp.sum(jnp.full(num, count / num, jnp.float32))
        values = {"loss": losses[0], "weight": jax.lax.stop_gradient(jnp.asarray(count))}
        _check_one_per_example(values["weight"], {}, expected)
    _check_one_per_example(values["loss"], metrics, expected)
    rows = {name: jnp.shape(value)[len(expected) :] for name, value in metrics.items()}
    given = {
        name: value / num_parts if num_parts > 1 and isinstance(value, int | float) else value
        for name, value in metrics.items()
    }
    values |= {name: jnp.broadcast_to(value, (*expected, *rows[name])) for name, value in given.items()}
    return values, _as_before(result[2], state[0]) if state else None


def _as_before(new: Any, old: Any) -> Any:
    """Convert a new model state to the types of the old one.

    Raises:
        ProgramError: leaves are missing, new, or have other shapes or dtypes; the message lists all of them.
    """
    have, had = ({path: _typed(x) for path, x in flatten_paths(tree)[0]} for tree in (new, old))
    odd = [path for path in {**had, **have} if had.get(path) != have.get(path)]
    if odd:
        lines = "".join(
            f"\n  model_state.{path}: took {had.get(path, 'nothing')}, returned {have.get(path, 'nothing')}"
            for path in odd
        )
        raise ProgramError(
            "the loss returns another model state than it took: "
            f"{counted(len(odd), 'leaf differs', 'leaves differ')}:{lines}"
            "\n  fix: return every leaf of model_state, updated or not, with its shape and dtype; reduce per-sample "
            "values over the samples first"
        )
    if jax.tree.structure(new) != jax.tree.structure(old):
        head = "the loss returns the leaves of the model state in another container:"
        fix = "  fix: build the new state with the type of the old one"
        raise ProgramError("\n".join([head, *structure_lines(old, new), fix]))
    # Arithmetic with Python numbers leaves weak types, which jit treats as other types than those of the old state.
    return jax.tree.map(
        lambda x: x if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else jax.lax.convert_element_type(x, x.dtype), new
    )


def _typed(x: Any) -> str:
    return f"{jnp.result_type(x)}{list(jnp.shape(x))}"


_NUMBERS = (bool, int, float, np.bool_, np.integer, np.floating)


def _check_one_per_example(losses: Any, metrics: Mapping[str, Any], expected: tuple[int, ...]) -> None:
    """Raise unless there is one number per sample, or per batch; a Python number counts for every sample.

    A metric may also be a row of numbers per sample, such as a histogram.
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
    what = f"one number per sample, shape {expected}" if expected else "one number for the batch, given its reduction"
    fixes = _fixes(shapes, expected, holds_none=any(value is None for value in odd.values()))
    raise ProgramError(f"the loss must return {what}; {len(odd)} differ:{lines}\n  fix: " + "; ".join(fixes))


def _is_metric(shape: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    return shape == expected or (bool(expected) and shape[:1] == expected and len(shape) == 2)


def _fixes(shapes: Mapping[str, tuple[int, ...]], expected: tuple[int, ...], *, holds_none: bool) -> Iterator[str]:
    if holds_none:
        yield "leave out None"
    if not expected:
        yield "reduce it over the batch, like the loss: x.mean(); or leave out reduction= to let the step take the mean"
        return
    yield "return one number per sample; the step takes the mean over the global batch"
    wide = next((shape for shape in shapes.values() if shape[:1] == expected and len(shape) > 1), None)
    if wide is not None:
        axes = tuple(range(1, len(wide)))
        yield f"take the mean over the other dims: .mean({axes[0] if len(axes) == 1 else axes})"
    if shapes.get("the losses") == ():
        yield "or say how the number was reduced: outlay.train_step(..., reduction='mean')"
    elif any(shape == () for shape in shapes.values()):
        yield (
            "compute what belongs to no sample, such as the norm of a parameter, from the state after a step, or ask "
            "for it by name: outlay.train_step(..., metrics=['param_norm'])"
        )


def _is_number(result: Any) -> bool:
    return getattr(result, "shape", None) == ()


def _in_words(value: Any) -> str:
    if hasattr(value, "shape"):
        return f"shape {tuple(value.shape)}"
    return f"a tuple of {len(value)}" if isinstance(value, tuple) else f"a {type(value).__name__}"


MOST_NUMBERS = 256
"""The most numbers in one metric, such as the counts of a histogram; every line of the metrics file has all of them."""


def as_metrics(outputs: Any) -> dict[str, Any]:
    """Flatten a step's outputs to names: entries of nested dictionaries by path, without None."""
    parts = [(split_path(path), path, leaf) for path, leaf in flatten_paths(outputs)[0]]
    return {names[0] if len(names) == 1 else path: leaf for names, path, leaf in parts}


def check_recordable(outputs: Any) -> None:
    """Raise if a step's outputs cannot be the metrics of a run, and list them.

    Args:
        outputs: arrays or shapes.

    Raises:
        ProgramError: the outputs are not a dictionary of numbers, or use reserved names.
    """
    if not isinstance(outputs, Mapping):
        raise ProgramError(
            f"a run records the outputs of a step by name, so they must be a dictionary, not {_in_words(outputs)}"
            '\n  fix: return state, {"loss": loss}'
        )
    problems = []
    for name, leaf in as_metrics(outputs).items():
        if name in OF_A_RUN:
            problems.append(Problem("taken name", name, "a run writes this itself", "rename it"))
        elif not is_real(leaf.dtype) or len(leaf.shape) > (name != "loss") or math.prod(leaf.shape) > MOST_NUMBERS:
            what = (
                f"a metric of a run is a real number, or up to {MOST_NUMBERS} in a row but for the loss; this is of "
                f"shape {tuple(leaf.shape)}, {leaf.dtype}"
            )
            problems.append(Problem("no metric", name, what, "return its mean, or a histogram of it, or leave it out"))
    if problems:
        raise ProgramError(f"{counted(len(problems), 'output')} of the step cannot be metrics of a run:", problems)
