"""Examples in the forms that people have them: trees of arrays, files, data sets of one example a number, loaders."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from outlay.arrays.host_values import Refused, take_array
from outlay.core.array_leaves import is_array
from outlay.core.error_types import DataError, ProgramError
from outlay.core.paths import flatten_paths, map_with_paths
from outlay.datasets.examples import Examples


def as_examples(source: Any) -> Any:
    """Return examples as a tree of arrays with one entry per example, or as `Examples` read by number.

    Args:
        source: such a tree; `Examples`; or what has a length and gives one example for a number: a list of examples, or
            a data set as PyTorch and Grain have them.

    Raises:
        ProgramError: it can only be iterated.

    Example:
        >>> pairs = as_examples([(np.ones(3), 0), (np.zeros(3), 1)])
        >>> [leaf.shape for leaf in pairs[[1, 0, 1]]]
        [(3, 3), (3,)]
    """
    if isinstance(source, Examples):
        return source
    if is_stream(source):
        raise ProgramError(
            f"examples are read by number, and a {type(source).__name__} has none\n  fix: {in_numbers(source)}"
        )
    is_data_set = _is_leaf(source) and not is_array(source) and _is_numbered(source)
    if is_data_set or _is_list_of_examples(source):
        what = f"the {type(source).__name__}"
        return Examples(len(source), lambda numbers: _stacked(source, numbers, what), source=what)
    return map_with_paths(_indexable, source)


def is_stream(source: Any) -> bool:
    """Return whether something can only be iterated: a generator, an iterator, a loader of batches."""
    return hasattr(source, "__iter__") and not hasattr(source, "__getitem__") and _is_leaf(source)


def in_numbers(stream: Any) -> str:
    """Return the edit that gives what a stream holds by number."""
    if hasattr(stream, "dataset") and _is_numbered(stream.dataset):
        size = getattr(stream, "batch_size", None)
        return (
            f"outlay.TrainData(loader.dataset, batch_size={size if isinstance(size, int) else '...'}), which shuffles"
        )
    return "list(it), if it fits in memory; or a class with __len__ and __getitem__(number)"


def chunks_of(source: Any) -> Iterator[Any]:
    """Yield the examples to evaluate on: all at once, or what a stream yields, each a batch of any size."""
    yield from map(as_examples, source if is_stream(source) else [source])


def _is_leaf(source: Any) -> bool:
    return jax.tree_util.all_leaves([source])


def _is_numbered(source: Any) -> bool:
    return hasattr(source, "__len__") and hasattr(source, "__getitem__") and not isinstance(source, str | bytes)


def _is_list_of_examples(source: Any) -> bool:
    """Return whether a list is one of examples, such as pairs: trees alike, and no tree of arrays of one length."""
    if not isinstance(source, list) or not source or jax.tree.structure(source[0]) == jax.tree.structure(0):
        return False
    lengths = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(source)}
    are_alike = len({jax.tree.structure(each) for each in source}) == 1
    return are_alike and (len(lengths) != 1 or () in lengths)


def _indexable(path: str, leaf: Any) -> Any:
    """Return an array that a list of numbers selects rows of: a Series selects labels, some tensors do neither.

    What is stored in chunks stays as it is: a file need not be read whole.
    """
    if isinstance(leaf, np.ndarray | jax.Array):
        return leaf
    if hasattr(leaf, "iloc"):
        return leaf.to_numpy()
    if hasattr(leaf, "chunks") or not (hasattr(leaf, "__dlpack__") or hasattr(leaf, "__array__")):
        return leaf
    try:
        return np.asarray(take_array(leaf, keeps_64_bits=True))
    except Refused as refused:
        _, words, fix = refused.args
        raise DataError(f"the examples: {path or 'the array'}: {words}\n  fix: {fix}") from refused


def _stacked(source: Any, numbers: np.ndarray, what: str) -> Any:
    """Read examples one by one, and stack them.

    Raises:
        DataError: they differ in structure or shape, or hold something else than numbers.
    """
    trees = [source[int(number)] for number in numbers]
    structure = jax.tree.structure(trees[0])
    odd = [number for number, tree in zip(numbers, trees, strict=True) if jax.tree.structure(tree) != structure]
    if odd:
        raise DataError(
            f"{what}: example {odd[0]} has other entries than example {numbers[0]}\n  fix: give all the same"
        )
    paths = [path for path, _ in flatten_paths(trees[0])[0]]
    leaves = []
    for path, rows in zip(paths, zip(*map(jax.tree.leaves, trees), strict=True), strict=True):
        try:
            arrays = [np.asarray(take_array(row, keeps_64_bits=True)) for row in rows]
        except Refused as refused:
            _, words, fix = refused.args
            raise DataError(f"{what}: {path or 'an example'}: {words}\n  fix: {fix}") from refused
        shapes: dict[tuple[int, ...], int] = {}
        for number, array in zip(numbers, arrays, strict=True):
            shapes.setdefault(array.shape, number)
        if len(shapes) > 1:
            (one, first), (other, second), *_ = shapes.items()
            raise DataError(
                f"{what}: {path or 'an array'} has shape {one} in example {first} and {other} in example {second}\n"
                "  fix: pad them to one shape; or outlay.train.BucketedData for sequences"
            )
        leaves.append(np.stack(arrays))
    return structure.unflatten(leaves)
