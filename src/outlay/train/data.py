"""Data by global step: the batch of any step, computed from nothing but its number."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from outlay.core.error_types import ProgramError
from outlay.train.contract import num_samples


class TrainData:
    """Shuffled batches without end; `data[step]` is the same whenever and wherever it is asked.

    Each epoch is shuffled anew. A batch may run over the end of an epoch, so no example is ever dropped.

    Args:
        examples: a tree of numpy arrays, one entry per example.
        batch_size: examples a batch.
        seed: of the shuffling.

    Example:
        >>> data = outlay.TrainData({"x": np.arange(10)}, batch_size=4, seed=0)
        >>> sorted(np.concatenate([data[step]["x"] for step in range(5)]).tolist()) == sorted([*range(10)] * 2)
        True
    """

    def __init__(self, examples: Any, *, batch_size: int, seed: int = 0) -> None:
        # Grain takes seconds to import, and only training needs it.
        import grain

        num_examples = num_samples(examples)
        if not 0 < batch_size <= num_examples:
            raise ProgramError(f"batch_size={batch_size} does not fit {num_examples} examples")
        self.examples = examples
        self.batch_size = batch_size
        self._order = grain.MapDataset.source(range(num_examples)).shuffle(seed=seed).repeat().batch(batch_size)

    def __getitem__(self, step: int) -> Any:
        """The batch of a global step, counted from 0."""
        rows = self._order[operator.index(step)]
        return jax.tree.map(lambda array: array[rows], self.examples)


def eval_batches(examples: Any, batch_size: int) -> Iterator[tuple[Any, np.ndarray]]:
    """Every example once, in order, in batches of one size with a weight per sample.

    The last batch is filled up with examples of weight 0, so that one compiled program serves all batches and none is
    dropped. The filling is real examples, not zeros: a loss that is not finite at zero would spoil the sum.

    Args:
        examples: a tree of numpy arrays, one entry per example.
        batch_size: examples a batch.

    Yields:
        (batch, weights): weights (batch_size,) float32, 1 for an example and 0 for filling.

    Example:
        >>> [(batch["x"].tolist(), weight.tolist()) for batch, weight in eval_batches({"x": np.arange(5)}, 3)]
        [([0, 1, 2], [1.0, 1.0, 1.0]), ([3, 4, 0], [1.0, 1.0, 0.0])]
    """
    num_examples = num_samples(examples)
    for start in range(0, num_examples, batch_size):
        numbers = np.arange(start, start + batch_size)
        rows = numbers % num_examples
        weights = (numbers < num_examples).astype(np.float32)
        yield jax.tree.map(lambda array, rows=rows: array[rows], examples), weights
