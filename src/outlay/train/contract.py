"""What a batch, the parameters and the loss must be for a training step; each mistake named with its numbers."""

from __future__ import annotations

import collections
import contextlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from outlay.core.errors import Problem, ProgramError
from outlay.core.paths import flatten_paths, split_path

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
    counted = collections.Counter(shape[0] for shape in shapes.values() if shape)
    if not counted:
        raise ProgramError("the batch has no array with a leading dim, so it holds no samples")
    usual = counted.most_common(1)[0][0]
    odd = {path: shape for path, shape in shapes.items() if shape[:1] != (usual,)}
    if odd:
        lines = "".join(f"\n  batch.{path}: shape {shape}" for path, shape in odd.items())
        raise ProgramError(
            f"every array of a batch holds one entry per sample, here {usual}; {len(odd)} do(es) not:{lines}"
            f"\n  cure: give it leading dim {usual}, or move it out of the batch"
        )
    return usual


def refuse_fixed_params(params: Any) -> None:
    """Raise when parameters cannot be trained because they are no real floats, naming each."""
    dtypes = [(path, jnp.result_type(leaf)) for path, leaf in flatten_paths(params)[0]]
    odd = [(path, dtype) for path, dtype in dtypes if not jnp.issubdtype(dtype, jnp.inexact)]
    if odd:
        raise ProgramError(
            f"{len(odd)} parameter(s) have no gradient, because they are no floats:{_lines(odd)}"
            "\n  cure: keep them out of params: nnx.split(model, nnx.Param, ...), "
            "eqx.partition(model, eqx.is_inexact_array)"
        )
    odd = [(path, dtype) for path, dtype in dtypes if jnp.issubdtype(dtype, jnp.complexfloating)]
    if odd:
        raise ProgramError(
            f"{len(odd)} parameter(s) are complex, and of those jax.grad gives the conjugate of the direction in which "
            f"optimizers go:{_lines(odd)}"
            "\n  cure: keep two real arrays and make one of them in the loss: w = jax.lax.complex(re, im); or write "
            "the step without outlay.train_step, and conjugate the gradients there"
        )


def _lines(params: list[tuple[str, Any]]) -> str:
    return "".join(f"\n  params.{path}: {dtype}" for path, dtype in params)


def called(loss: Callable[..., Any], params: Any, batch: Any, keys: Any, expected: tuple[int, ...]) -> dict[str, Any]:
    """What a loss function gives for each sample: its `loss`, and its metrics.

    Args:
        loss: the user's.
        params: the parameters.
        batch: the batch.
        keys: a key for every sample, or None.
        expected: the shape that each of the results must have.

    Raises:
        ProgramError: it takes or gives something else; every array at fault is named.
    """
    with contextlib.suppress(ValueError):  # some callables have no signature to look at
        signature = inspect.signature(loss)
        try:
            signature.bind(params, batch, keys)
        except TypeError as error:
            raise ProgramError(
                f"the loss takes {signature}, and is called as loss(params, batch, keys): {error}"
                "\n  cure: def loss(params, batch, keys): ...; what draws nothing at random leaves keys unused"
            ) from None
    result = loss(params, batch, keys)
    if not (isinstance(result, tuple) and len(result) == 2):
        raise ProgramError(
            f"loss(params, batch, keys) must return a pair (losses, metrics); it returned {_in_words(result)}"
            "\n  cure: return losses, {}"
        )
    losses, metrics = result
    if not isinstance(metrics, Mapping):
        raise ProgramError(
            f"loss(params, batch, keys) must return (losses, metrics) with metrics a dict, "
            f"not a {type(metrics).__name__}\n  cure: return losses, {{}}"
        )
    taken = [name for name in metrics if name in RESERVED]
    if taken:
        raise ProgramError(f"the metrics {taken} have names that the step gives itself {RESERVED}: rename them")
    _refuse_other_shapes(losses, metrics, expected)
    return {"loss": losses, **{name: jnp.broadcast_to(jnp.asarray(value), expected) for name, value in metrics.items()}}


_NUMBERS = (bool, int, float, np.bool_, np.integer, np.floating)


def _refuse_other_shapes(losses: Any, metrics: Mapping[str, Any], expected: tuple[int, ...]) -> None:
    """Raise when there is not one number per sample; a number known to Python is the same for every sample."""
    arrays = (jax.Array, np.ndarray)
    odd = {
        f"metric {name!r}": value
        for name, value in metrics.items()
        if not (isinstance(value, _NUMBERS) or (isinstance(value, arrays) and value.shape == expected))
    }
    if not (isinstance(losses, arrays) and losses.shape == expected):
        odd = {"the losses": losses, **odd}
    if not odd:
        return
    lines = "".join(f"\n  {name}: {_in_words(value)}" for name, value in odd.items())
    cures = ["leave the mean over samples to the step, which takes it over the global batch"]
    shapes = {name: tuple(value.shape) for name, value in odd.items() if hasattr(value, "shape")}
    wide = next((shape for shape in shapes.values() if shape[:1] == expected and len(shape) > 1), None)
    if wide is not None:
        axes = tuple(range(1, len(wide)))
        cures.append(f"take the mean over the other dims: .mean({axes[0] if len(axes) == 1 else axes})")
    if any(value is None for value in odd.values()):
        cures.append("leave out what is None")
    if any(shape == () for name, shape in shapes.items() if name != "the losses"):
        cures.append("what is of no sample, such as the norm of a parameter, can be had from the state after a step")
    raise ProgramError(
        f"loss(params, batch, keys) must return one number per sample, shape {expected}; {len(odd)} are "
        f"other:{lines}\n  cure: " + "; ".join(cures)
    )


def _in_words(value: Any) -> str:
    if hasattr(value, "shape"):
        return f"shape {tuple(value.shape)}"
    return f"a tuple of {len(value)}" if isinstance(value, tuple) else f"a {type(value).__name__}"


def as_metrics(outputs: Any) -> dict[str, Any]:
    """A step's outputs by name: those of nested dictionaries by path, and without what is None."""
    parts = [(split_path(path), path, leaf) for path, leaf in flatten_paths(outputs)[0]]
    return {names[0] if len(names) == 1 else path: leaf for names, path, leaf in parts}


def refuse_unrecordable(outputs: Any) -> None:
    """Raise when a step's outputs cannot be the metrics of a run, naming each.

    Args:
        outputs: as arrays or shapes.

    Raises:
        ProgramError: they are no dictionary of numbers, or have the names that a run gives itself.
    """
    if not isinstance(outputs, Mapping):
        raise ProgramError(
            f"a run records what a step returns beside its state, by name; it returns {_in_words(outputs)}"
            '\n  cure: return state, {"loss": loss}'
        )
    problems = []
    for name, leaf in as_metrics(outputs).items():
        if name in OF_A_RUN:
            problems.append(Problem("taken name", name, "a run writes this itself", "rename it"))
        elif leaf.shape or not _is_real(leaf.dtype):
            what = f"a metric of a run is one real number; this is of shape {tuple(leaf.shape)}, {leaf.dtype}"
            one = f'{{"{name}.0": {name}[0], ...}}'
            cure = f"return a number, such as its mean or one entry by name: {one}; or leave it out"
            problems.append(Problem("no number", name, what, cure))
    if problems:
        head = f"{len(problems)} output(s) of the step cannot be metrics of a run:"
        raise ProgramError("\n".join([head, *(problem.text() for problem in problems)]))


def _is_real(dtype: Any) -> bool:
    return any(jnp.issubdtype(dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_))
