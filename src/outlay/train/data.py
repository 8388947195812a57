"""Data by global step: the batch of a step is a function of its number alone."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import jax
import numpy as np

from outlay.arrays.from_slices import from_callback
from outlay.arrays.sharding_blocks import blocks
from outlay.arrays.shardings import shardings
from outlay.core.error_types import ProgramError
from outlay.datasets.examples import Examples
from outlay.program.program import Program
from outlay.train.contract import num_samples


class Data(Protocol):
    """Batches by global step."""

    def __getitem__(self, step: int, /) -> Any:
        """Return the batch of a step, counted from 0."""


class TrainData:
    """An endless stream of shuffled batches; `data[step]` is the same in every process and every run.

    Each epoch has a new order. A batch may span two epochs, so no example is ever dropped.

    Args:
        examples: a tree of numpy arrays with one entry per example; or examples in files, opened with
            `outlay.datasets`, of which each batch reads only its own.
        batch_size: the number of examples in a batch.
        seed: the seed of the shuffling.

    Raises:
        ProgramError: there are fewer examples than a batch needs.

    Example:
        >>> data = outlay.TrainData({"x": np.arange(10)}, batch_size=4, seed=0)
        >>> sorted(np.concatenate([data[step]["x"] for step in range(5)]).tolist()) == sorted([*range(10)] * 2)
        True
    """

    def __init__(self, examples: Any, *, batch_size: int, seed: int = 0) -> None:
        num_examples = num_of(examples)
        if not 0 < batch_size <= num_examples:
            where = f" of {examples.source}" if isinstance(examples, Examples) else ""
            fix = f"a batch of {num_examples} or fewer, or more examples" if num_examples else "give it examples"
            raise ProgramError(f"batch_size={batch_size} does not fit {num_examples} examples{where}\n  fix: {fix}")
        self.examples = examples
        self.batch_size = batch_size
        self._seed = seed

    def __getitem__(self, step: int) -> Any:
        """Return the batch of a global step, counted from 0."""
        return rows_of(self.examples, self.numbers(step))

    def numbers(self, step: int) -> np.ndarray:
        """Return the indices of the examples of a global step."""
        return np.asarray(self._order[operator.index(step)])

    @property
    def example(self) -> Any:
        """A batch like all others, of the first examples in their order, for whoever asks for shapes only."""
        return rows_of(self.examples, np.arange(self.batch_size))

    @functools.cached_property
    def _order(self) -> Any:
        # Grain takes long to import, and only training needs it.
        import grain

        source = grain.MapDataset.source(range(num_of(self.examples)))
        return source.shuffle(seed=self._seed).repeat().batch(self.batch_size)

    def on(self, program: Program) -> Data:
        """Place the batches where a program needs them; each process reads only the examples of its own devices.

        Args:
            program: a program that takes such batches.

        Example:
            >>> data = outlay.TrainData({"x": np.arange(32.0, dtype=np.float32)}, batch_size=16)
            >>> step = lambda state, batch: (state, {"mean": batch["x"].mean()})
            >>> program = outlay.program(
            ...     step, lambda key: 0.0, data[0], layout=outlay.data_parallel(), mesh=outlay.mesh(data=8))
            >>> data.on(program)[0]["x"].sharding.spec
            P('data',)
        """
        return _Placed(self, program)


class _Placed:
    """Batches by global step, placed by a program's plan."""

    def __init__(self, data: TrainData, program: Program) -> None:
        self._data = data
        self._shapes, structure = jax.tree.flatten(program.batch_shapes)
        self._structure = structure
        batch_shardings = shardings(program.plan, program.batch_shapes, program.mesh, root="batch")
        self._shardings = structure.flatten_up_to(batch_shardings)
        process = jax.process_index()
        rows = [
            range(*bounds[0])
            for shape, sharding in zip(self._shapes, self._shardings, strict=True)
            for bounds in blocks(shape.shape, sharding, process=process)
        ]
        self.own_rows = np.unique(np.concatenate(rows)).astype(int)
        """The positions in a batch of the examples that are read here."""

    def __getitem__(self, step: int) -> Any:
        numbers = self._data.numbers(step)[self.own_rows]
        parts = self._structure.flatten_up_to(rows_of(self._data.examples, numbers))
        leaves = [
            from_callback(functools.partial(self._part, part), shape.shape, shape.dtype, sharding)
            for part, shape, sharding in zip(parts, self._shapes, self._shardings, strict=True)
        ]
        return self._structure.unflatten(leaves)

    def _part(self, part: np.ndarray, index: tuple[slice, ...]) -> np.ndarray:
        first, last = np.searchsorted(self.own_rows, (index[0].start, index[0].stop - 1))
        return part[(slice(first, last + 1), *index[1:])]


class ReadAhead:
    """Read the next batches in a thread while the devices work; leaving the context ends the thread.

    Args:
        data: `data[step]` is the batch of a step.
        num_batches: the number of batches to read in advance, at least 1.
        num_steps: the number of steps; no batch after the last step is read.
    """

    def __init__(self, data: Any, num_batches: int, num_steps: int) -> None:
        self._data = data
        self._num_batches = num_batches
        self._num_steps = num_steps
        # One thread: steps are read in order, and data need not be safe to read from several at once.
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="outlay-read-ahead")
        self._batches: dict[int, Future[Any]] = {}

    def __enter__(self) -> ReadAhead:
        return self

    def __exit__(self, *error: object) -> None:
        # Wait for the batch being read: after the run, somebody else may read from the same data.
        self._reader.shutdown(cancel_futures=True)

    def __getitem__(self, step: int) -> Any:
        """Return the batch of a global step, or raise what reading it raised."""
        for number in range(step, min(step + self._num_batches + 1, self._num_steps)):
            if number not in self._batches:
                self._batches[number] = self._reader.submit(operator.getitem, self._data, number)
        return self._batches.pop(step).result()


def num_of(examples: Any) -> int:
    """Count the examples, in arrays or in files."""
    return len(examples) if isinstance(examples, Examples) else num_samples(examples)


def rows_of(examples: Any, numbers: np.ndarray) -> Any:
    """Return the examples at these indices, as a tree of arrays."""
    if isinstance(examples, Examples):
        return examples[numbers]
    return jax.tree.map(lambda array: array[numbers], examples)


def eval_batches(examples: Any, batch_size: int, *, padded: bool = True) -> Iterator[tuple[Any, np.ndarray]]:
    """Yield every example once, in order, in batches of one size with a weight per sample.

    The last batch is padded with examples of weight 0, so that one compiled program serves all batches and no example
    is dropped. The padding is real examples, not zeros: a loss that is not finite at zero would make the sum NaN.

    Args:
        examples: a tree of numpy arrays with one entry per example; or examples in files.
        batch_size: the number of examples in a batch.
        padded: whether the last batch is padded; otherwise it is smaller.

    Yields:
        (batch, weights): weights (batch_size,) float32, 1 for an example and 0 for padding.

    Example:
        >>> [(batch["x"].tolist(), weight.tolist()) for batch, weight in eval_batches({"x": np.arange(5)}, 3)]
        [([0, 1, 2], [1.0, 1.0, 1.0]), ([3, 4, 0], [1.0, 1.0, 0.0])]
    """
    num_examples = num_of(examples)
    for start in range(0, num_examples, batch_size):
        numbers = np.arange(start, start + batch_size if padded else min(start + batch_size, num_examples))
        rows = numbers % num_examples
        weights = (numbers < num_examples).astype(np.float32)
        yield rows_of(examples, rows), weights
