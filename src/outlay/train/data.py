"""Data by global step: the batch of a step is a function of its number alone; sequences in buckets of few lengths."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import jax
import numpy as np

from outlay.arrays.from_slices import read_pieces
from outlay.arrays.host_values import Refused, take_array
from outlay.arrays.sharding_blocks import blocks
from outlay.arrays.shardings import shardings
from outlay.core.error_types import DataError, PlaceError, ProgramError
from outlay.core.flat_nodes import flat_nodes, users_nodes
from outlay.core.paths import flatten_paths, under
from outlay.core.public_names import called_as
from outlay.core.quantities import counted
from outlay.datasets.examples import Examples
from outlay.program.program import Program
from outlay.train.check_step import num_samples


def is_read_by_number(source: Any) -> bool:
    """Return whether examples are plainly read by number: files, or arrays in a dictionary or a tuple."""
    if not isinstance(source, dict | tuple | np.ndarray | jax.Array):
        return isinstance(source, Examples)
    leaves = jax.tree.leaves(source)
    return bool(leaves) and all(isinstance(leaf, np.ndarray | jax.Array) for leaf in leaves)


class Data(Protocol):
    """Batches by global step."""

    def __getitem__(self, step: int, /) -> Any:
        """Return the batch of a step, counted from 0."""


class TrainData:
    """An endless stream of shuffled batches; `data[step]` is the same in every process and every run.

    Each epoch has a new order. A batch may span two epochs, so no example is ever dropped.

    Args:
        examples: a tree of arrays with one entry per example; or examples in files, opened with `outlay.datasets`, of
            which each batch reads only its own; or a list of examples such as pairs, or a data set with `__len__` and
            `__getitem__` of one example, as PyTorch and Grain have them.
        batch_size: the number of examples in a batch.
        seed: the seed of the shuffling.

    Raises:
        ProgramError: there are fewer examples than a batch needs, or they can only be iterated.

    Example:
        >>> data = outlay.TrainData({"x": np.arange(10)}, batch_size=4, seed=0)
        >>> sorted(np.concatenate([data[step]["x"] for step in range(5)]).tolist()) == sorted([*range(10)] * 2)
        True
    """

    @called_as("outlay.TrainData(examples, batch_size=16)", shuffle="seed=: every epoch has an order of its own")
    def __init__(self, examples: Any, *, batch_size: int, seed: int = 0) -> None:
        if not is_read_by_number(examples):
            from outlay.train.example_sources import as_examples

            examples = as_examples(examples)
        num_examples = num_of(examples)
        if not 0 < batch_size <= num_examples:
            where = f" of {examples.source}" if isinstance(examples, Examples) else ""
            fix = f"a batch of {num_examples} or fewer, or more examples" if num_examples else "give it examples"
            if isinstance(examples, list) and len(examples) >= batch_size:
                fix = f"a list is a tree, here of {len(examples)} arrays; if each is one example: np.stack(examples)"
            raise ProgramError(f"batch_size={batch_size} does not fit {num_examples} examples{where}\n  fix: {fix}")
        self.examples = examples
        self.batch_size = batch_size
        self._seed = seed

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {num_of(self.examples)} examples in batches of {self.batch_size}>"

    def __getitem__(self, step: int) -> Any:
        """Return the batch of a global step, counted from 0."""
        return rows_of(self.examples, self.numbers(step))

    def numbers(self, step: int) -> np.ndarray:
        """Return the indices of the examples of a global step."""
        return np.asarray(self._order[operator.index(step)])

    @property
    def example(self) -> Any:
        """The first batch in file order, for its shapes."""
        return rows_of(self.examples, np.arange(self.batch_size))

    @functools.cached_property
    def _order(self) -> Any:
        # Grain takes long to import, and only training needs it.
        import grain

        numbers = grain.MapDataset.range(num_of(self.examples))
        return numbers.shuffle(seed=self._seed).repeat().batch(self.batch_size)

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
        self._paths = [path for path, _ in flatten_paths(program.batch_shapes)[0]]
        batch_shardings = shardings(program.plan, program.batch_shapes, program.mesh, root="batch")
        self._shardings = structure.flatten_up_to(batch_shardings)
        process = jax.process_index()
        rows = [
            range(*bounds[0])
            for shape, sharding in zip(self._shapes, self._shardings, strict=True)
            for bounds in blocks(shape.shape, sharding, process=process)
        ]
        # Leaves may be split differently: an example that any of them needs is read once, for all of them.
        self.own_rows = np.unique(np.concatenate(rows)).astype(int)
        """The positions in a batch of the examples that are read here."""

    def __getitem__(self, step: int) -> Any:
        numbers = self._data.numbers(step)[self.own_rows]
        by_path = dict(flatten_paths(flat_nodes(rows_of(self._data.examples, numbers)))[0])
        if by_path.keys() != set(self._paths):
            raise ProgramError(
                f"the examples have the arrays {', '.join(by_path)}, and the program's batch has "
                f"{', '.join(self._paths)}\n  fix: make the program with data[0] of this data"
            )
        parts = [by_path[path] for path in self._paths]
        leaves, problems = [], []
        for path, part, shape, sharding in zip(self._paths, parts, self._shapes, self._shardings, strict=True):
            read = functools.partial(self._part, part)
            leaf, odd = read_pieces(read, shape.shape, shape.dtype, sharding, under("batch", path))
            leaves.append(leaf)
            problems += odd
        if problems:
            raise PlaceError(
                f"the batch of step {step} cannot be placed: {counted(len(problems), 'problem')}", problems
            )
        return users_nodes(self._structure.unflatten(leaves))

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


class BucketedData:
    """An endless stream of shuffled batches of sequences of similar length, indexed by global step.

    A sequence goes into the shortest bucket that fits. Each epoch has every sequence once; sequences that only fill up
    the last batch of a bucket have weight 0. `fit` compiles one program per bucket; all of them share one state.

    Args:
        sequences: arrays (T, ...) of any lengths T and one dtype.
        lengths: the lengths of the buckets, ascending.
        batch_size: the number of sequences in a batch.
        seed: the seed of the shuffling.
        name: the entry of the batch that holds the sequences.

    Attributes:
        buckets: one batch of every bucket in use, the shortest first.
        batches_per_epoch: the number of batches in an epoch.

    Raises:
        DataError: there are no sequences, one of them is empty or longer than the longest bucket, or the lengths do not
            ascend.

    Example:
        >>> sequences = [np.arange(n) for n in (3, 8, 2, 5, 1)]
        >>> data = outlay.train.BucketedData(sequences, lengths=[4, 8], batch_size=2)
        >>> [batch["tokens"].shape for batch in data.buckets], data.batches_per_epoch
        ([(2, 4), (2, 8)], 3)
        >>> batch = data.buckets[1]
        >>> sorted(batch["length"].tolist()), batch["weight"].tolist()
        ([5, 8], [1.0, 1.0])
    """

    @called_as("outlay.train.BucketedData(sequences, lengths=[64, 128], batch_size=16)")
    def __init__(
        self,
        sequences: Sequence[np.ndarray],
        *,
        lengths: Sequence[int],
        batch_size: int,
        seed: int = 0,
        name: str = "tokens",
    ) -> None:
        if batch_size < 1:
            raise DataError(f"batch_size={batch_size}: a batch needs at least 1 sequence")
        if not lengths or list(lengths) != sorted(set(lengths)) or lengths[0] < 1:
            raise DataError(f"lengths={list(lengths)}: give the lengths of the buckets, ascending, such as [64, 128]")
        own = np.array([len(sequence) for sequence in sequences], int)
        misfits = np.flatnonzero((own < 1) | (own > lengths[-1]))
        if len(misfits) or not len(own):
            first = f", such as sequence {misfits[0]} of length {own[misfits[0]]}" if len(misfits) else ""
            longest = int(own.max(initial=1))
            raise DataError(
                f"{counted(len(misfits), 'sequence')} of {len(own)} fit in no bucket of {lengths[-1]}{first}"
                f"\n  fix: sequences of 1 to {lengths[-1]}, or a bucket of {longest} more: lengths="
                f"{sorted({*lengths, longest})}"
            )
        self._sequences, self._name, self._seed, self.batch_size = sequences, name, seed, batch_size
        self._latest: tuple[int, list[tuple[int, np.ndarray]]] = (-1, [])
        bucket_of = np.searchsorted(np.asarray(lengths), own)
        self._members = {lengths[bucket]: np.flatnonzero(bucket_of == bucket) for bucket in np.unique(bucket_of)}
        self._lengths = list(lengths)
        self.batches_per_epoch = sum(-(-len(members) // batch_size) for members in self._members.values())
        self.buckets = [self._batch(length, members[:batch_size]) for length, members in self._members.items()]

    def __repr__(self) -> str:
        return (
            f"<BucketedData: {len(self._sequences)} sequences, lengths {self._lengths}, batches of {self.batch_size}>"
        )

    def __getitem__(self, step: int) -> dict[str, np.ndarray]:
        """Return the batch of a global step, counted from 0."""
        epoch, number = divmod(int(step), self.batches_per_epoch)
        return self._batch(*self._batches_of(epoch)[number])

    def _batches_of(self, epoch: int) -> list[tuple[int, np.ndarray]]:
        """List the batches of an epoch as (length, sequence indices); a function of seed and epoch only."""
        if self._latest[0] == epoch:
            return self._latest[1]
        rng = np.random.default_rng((self._seed, epoch))
        batches = []
        for length, members in self._members.items():
            order = rng.permutation(members)
            starts = range(0, len(order), self.batch_size)
            batches += [(length, order[start : start + self.batch_size]) for start in starts]
        self._latest = epoch, [batches[position] for position in rng.permutation(len(batches))]
        return self._latest[1]

    def _batch(self, length: int, numbers: np.ndarray) -> dict[str, np.ndarray]:
        first = self._sequence(0)
        rows = np.zeros((self.batch_size, length, *first.shape[1:]), first.dtype)
        sizes = np.ones(self.batch_size, np.int32)
        # The filling is real sequences, not zeros: a loss that is not finite at zero would spoil the sum.
        for row, number in enumerate(np.resize(numbers, self.batch_size)):
            sequence = self._sequence(number)
            if sequence.dtype != first.dtype or sequence.shape[1:] != first.shape[1:]:  # NumPy would cut it to fit
                raise DataError(
                    f"sequence {number} is {sequence.dtype}{list(sequence.shape)}, and sequence 0 is {first.dtype}"
                    f"{list(first.shape)}\n  fix: sequences of one dtype, alike in all dims but the first"
                )
            rows[row, : len(sequence)], sizes[row] = sequence, len(sequence)
        weights = (np.arange(self.batch_size) < len(numbers)).astype(np.float32)
        return {self._name: rows, "length": sizes, "weight": weights}

    def _sequence(self, number: int) -> np.ndarray:
        try:
            return np.asarray(take_array(self._sequences[number], keeps_64_bits=True))
        except Refused as odd:
            _, what, fix = odd.args
            raise DataError(f"sequence {number} holds what JAX cannot: {what}\n  fix: {fix}") from odd


def programs_by_shape(program: Program, data: Any) -> dict[tuple[Any, ...], Program]:
    """Compile a program for every batch shape of `data.buckets`, all for the same state.

    Args:
        program: a program for one of the shapes, or for the only one.
        data: batches by global step.
    """
    programs = {shapes_of(program.batch_shapes): program}
    for batch in getattr(data, "buckets", ()):
        if shapes_of(batch) not in programs:
            programs[shapes_of(batch)] = other = program.with_batch(batch)
            other.agree()
            _ = other.compiled_parts  # compile now, so that compile errors come before the first step
    return programs


def shapes_of(batch: Any) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of a batch's leaves; they are the key of its program."""
    return tuple(np.shape(leaf) for leaf in jax.tree.leaves(batch))
