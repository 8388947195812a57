"""Say in whose batch the values were that are not finite, in a job of several processes."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from outlay.core.paths import flatten_paths
from outlay.core.quantities import counted, listed


class NotFinite:
    """Look once, at the first metric of a job that is not finite, for such values in this process's batch.

    The loss of a job is the same in all processes, and does not tell in whose batch they were.
    """

    _has_looked = False

    def look(self, first: int, metrics: Sequence[Mapping[str, Any]], batches: Sequence[Any]) -> None:
        """Print which metric is not finite, and what of this process's batch is not; once, and nothing while all are.

        Args:
            first: the number of the first of some steps.
            metrics: the metrics of each of these steps.
            batches: the batch of each, as this process has given it.
        """
        if self._has_looked:
            return
        for step, (numbers, batch) in enumerate(zip(metrics, batches, strict=True), first):
            wrong = [name for name, value in numbers.items() if not np.all(np.isfinite(value))]
            if wrong:
                self._has_looked = True
                values = _not_finite(batch)
                where = listed(values, 3) if values else "all values of its own batch are finite"
                process = f"process {jax.process_index()} of {jax.process_count()}"
                if values or jax.process_index() == 0:
                    print(f"{process}: {listed(wrong, 3)} of step {step} is not finite; {where}", file=sys.stderr)
                return


def _not_finite(batch: Any) -> list[str]:
    """Name the leaves of a batch that have values here which are not finite."""
    lines = []
    for path, leaf in flatten_paths(batch)[0]:
        pieces = [shard.data for shard in leaf.addressable_shards] if isinstance(leaf, jax.Array) else [leaf]
        arrays = [array for piece in pieces if jax.numpy.issubdtype((array := np.asarray(piece)).dtype, np.inexact)]
        num = sum(int((~np.isfinite(array)).sum()) for array in arrays)
        if num:
            lines.append(f"{path} has {counted(num, 'such value')} in its own batch")
    return lines
