"""The batches for a proof: the user's, or made up so that they make the step compute something."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from outlay.analysis.verify.host import is_key
from outlay.core.error_types import ProgramError
from outlay.core.paths import flatten_paths
from outlay.layout.plan import Plan

Computed = TypeVar("Computed")
Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]

KINDS: Mapping[str, Draw] = {
    "floats normal": lambda rng, shape: rng.normal(size=shape),
    "floats between 0.5 and 1.5": lambda rng, shape: rng.uniform(0.5, 1.5, size=shape),
    "floats between 0 and 1": lambda rng, shape: rng.uniform(size=shape),
}
"""Kinds of made-up floats; the first that a step can take is used: logarithms and roots need positive ones."""

_ANY = 8


_USUAL = 3
"""Steps of a proof where nobody says how many."""


def number_of_steps(batches: Any) -> int:
    """Return how many steps a proof takes by itself: one for each batch of a list.

    >>> number_of_steps([np.ones(8)]), number_of_steps(None)
    (1, 3)
    """
    return len(batches) if isinstance(batches, list | tuple) and batches else _USUAL


def take(batches: Any, num_steps: int) -> list[Any]:
    """Take the first batches of something that gives them as `batches[step]`, or that is iterable.

    Raises:
        ProgramError: there are too few, or it is a single batch, or holds no batches.
    """
    if isinstance(batches, Mapping):
        raise ProgramError(
            "batches takes one batch per step, but a single batch was passed\n  fix: batches=[batch] * 3"
        )
    if hasattr(batches, "__getitem__") and not isinstance(batches, str):
        taken = _from(batches, 0, num_steps)
    elif hasattr(batches, "__iter__") and not isinstance(batches, str):
        taken = list(itertools.islice(batches, num_steps))
    else:
        raise ProgramError(
            f"batches={batches!r} holds no batches: it takes one batch per step, as a list, an iterator, or anything "
            "that gives the batch of a step as batches[step]\n  fix: batches=[batch] * 3, or leave it out"
        )
    if len(taken) < num_steps:
        raise ProgramError(
            f"{num_steps} steps need {num_steps} batches, but there are {len(taken)}\n"
            f"  fix: steps={max(len(taken), 1)}, or give more batches"
        )
    return taken


def more(batches: Any, taken: Sequence[Any], num: int) -> list[Any]:
    """Take further batches from the same source; if there are no more, repeat the first ones."""
    further = _from(batches, len(taken), num) if hasattr(batches, "__getitem__") else []
    return [*further, *itertools.islice(itertools.cycle(taken), num - len(further))]


def _from(batches: Any, start: int, num: int) -> list[Any]:
    """Take batches from a number on, up to a count."""
    taken: list[Any] = []
    with contextlib.suppress(LookupError):
        for step in range(start, start + num):
            taken.append(batches[step])  # noqa: PERF401 - batches taken before an error are kept
    return taken


MIXED = "mixed"
"""Made-up floats of mixed kinds: each leaf of each batch takes another of `KINDS`, scaled up or down."""


def make_up(shapes: Any, num_steps: int, sizes: Mapping[int, int] | None, kind: str, seed: int = 0) -> list[Any]:
    """Make up batches of given shapes, on the host.

    Args:
        shapes: the batch as shapes.
        num_steps: how many.
        sizes: for leaves of integers by position, how many values they may take; None if nothing is known of the step:
            integers are then zero, which is valid for any index and any label.
        kind: which of `KINDS` the floats are, or `MIXED`.
        seed: the seed of the random numbers.
    """
    rng = np.random.default_rng(seed)
    leaves, structure = flatten_paths(shapes)

    def one(number: int, path: str, leaf: Any) -> Any:
        if is_key(leaf):
            bits = jax.eval_shape(jax.random.key_data, leaf)
            return rng.integers(2**32, size=bits.shape, dtype=np.uint32)
        if jnp.issubdtype(leaf.dtype, jnp.inexact):
            drawn = KINDS[rng.choice(list(KINDS)) if kind == MIXED else kind]
            if path == "weight":  # a step from `outlay.train_step` divides by their sum
                return rng.uniform(0.5, 1.5, size=leaf.shape).astype(leaf.dtype)
            # Some faults show only at some sizes, such as clipping, which few batches reach (decision 43).
            return (drawn(rng, leaf.shape) * (rng.choice([0.25, 1, 4]) if kind == MIXED else 1)).astype(leaf.dtype)
        if sizes is None:
            return np.zeros(leaf.shape, leaf.dtype)
        if leaf.dtype == bool:
            return rng.integers(2, size=leaf.shape).astype(bool)
        return rng.integers(_num_values(leaf, sizes.get(number)), size=leaf.shape).astype(leaf.dtype)

    return [
        jax.tree.unflatten(structure, [one(number, *leaf) for number, leaf in enumerate(leaves)])
        for _ in range(num_steps)
    ]


def made_up_words(shapes: Any, sizes: Mapping[int, int] | None, kind: str) -> str:
    """Say how made-up batches were made."""
    leaves = flatten_paths(shapes)[0]
    integers = [
        (path or "the batch", _num_values(leaf, sizes.get(number)), number in sizes)
        for number, (path, leaf) in enumerate(leaves)
        if sizes is not None and not is_key(leaf) and jnp.issubdtype(leaf.dtype, jnp.integer)
    ]
    drawn = ", ".join(f"{path} < {size}{'' if known else ' (a guess)'}" for path, size, known in integers)
    integers_words = "integers zero" if sizes is None else f"integers random, {drawn}" if integers else ""
    return (
        ", ".join(filter(None, (f"made up: {kind}", integers_words, "weights from 0.5 to 1.5")))
        + "; give your own with batches="
    )


def _num_values(leaf: Any, size: int | None) -> int:
    # Of a small dtype any value may be meant; of a larger one nobody knows, and small numbers index most things.
    most = int(jnp.iinfo(leaf.dtype).max) + 1
    return max(1, min(most, size if size is not None else most if most <= 256 else _ANY))


def all_samples_are_alike(batches: Sequence[Any], plan: Plan) -> bool:
    """Return whether all samples that devices split among them are equal, so that a missing one would not show."""
    dims = {leaf.path: [dim for dim, axes in enumerate(leaf.dims) if axes] for leaf in plan.of_kind("batch")}
    seen = False
    for batch in batches:
        for path, leaf in flatten_paths(batch)[0]:
            split = dims.get(f"batch.{path}" if path else "batch", [])
            values = np.asarray(jax.random.key_data(leaf) if isinstance(leaf, jax.Array) and is_key(leaf) else leaf)
            for dim in split:
                if values.shape[dim] > 1:
                    seen = True
                    if np.any(values != np.take(values, [0], axis=dim)):
                        return False
    return seen


def perturbed(tree: Any, seed: int, least: float = 0.0) -> Any:
    """Move every float entry of a tree by one unit in its last digit, up or down: as much as rounding does.

    Args:
        tree: of arrays on the host.
        seed: which entries move up.
        least: the share of itself by which an entry moves at least, where a step rounds to less than its dtypes.
    """
    rng = np.random.default_rng(seed)

    def one(leaf: np.ndarray) -> np.ndarray:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        signs = rng.choice((-1.0, 1.0), size=leaf.shape)
        return (leaf.astype(np.float64) * (1 + signs * max(least, float(jnp.finfo(leaf.dtype).eps)))).astype(leaf.dtype)

    return jax.tree.map(one, tree)


def results_of_perturbed(
    run: Callable[[Any, Any], Computed], state: Any, batch: Any, least: float = 0.0, *, num: int
) -> Callable[[], Iterator[Computed]]:
    """Return what yields the results of a run from inputs that moved, each computed once and only if it is asked for.

    Args:
        run: takes a state and a batch.
        state: the state.
        batch: the batch.
        least: the share of itself by which an entry moves at least.
        num: how many results there are.
    """
    results: list[Computed] = []

    def one_by_one() -> Iterator[Computed]:
        for seed in range(num):
            if seed == len(results):
                results.append(run(*perturbed((state, batch), seed, least)))
            yield results[seed]

    return one_by_one


def shifted(state: Any) -> Any:
    """Make every float of a state a little larger, so that what starts at zero does not keep others from changing."""
    rng = np.random.default_rng(0)

    def one(leaf: np.ndarray) -> np.ndarray:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        drawn = rng.uniform(size=leaf.shape)
        return leaf.astype(np.float64) * (1 + 0.1 * drawn) + 0.01 * drawn

    return jax.tree.map(one, state)


def in_float64(tree: Any) -> Any:
    """Return the tree with its floats in float64."""
    return jax.tree.map(lambda x: x.astype(np.float64) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree)
