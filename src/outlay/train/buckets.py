"""Bucket sequences of different lengths, so that batches have only a few shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from outlay.core.error_types import DataError
from outlay.core.quantities import counted
from outlay.program.program import Program


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
        self.batches_per_epoch = sum(-(-len(members) // batch_size) for members in self._members.values())
        self.buckets = [self._batch(length, members[:batch_size]) for length, members in self._members.items()]

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
        first: Any = self._sequences[0]
        rows = np.zeros((self.batch_size, length, *np.shape(first)[1:]), np.asarray(first).dtype)
        sizes = np.ones(self.batch_size, np.int32)
        # The filling is real sequences, not zeros: a loss that is not finite at zero would spoil the sum.
        for row, number in enumerate(np.resize(numbers, self.batch_size)):
            sequence = self._sequences[number]
            rows[row, : len(sequence)], sizes[row] = sequence, len(sequence)
        weights = (np.arange(self.batch_size) < len(numbers)).astype(np.float32)
        return {self._name: rows, "length": sizes, "weight": weights}


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
