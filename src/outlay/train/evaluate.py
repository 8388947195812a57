"""Exact means over a data set, computed where a program's state lives."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from outlay.arrays.put import put
from outlay.arrays.shardings import shardings
from outlay.jobs.heartbeat import beat
from outlay.program.host_memory import fetching
from outlay.program.program import Program
from outlay.train.objective import Loss, Objective, sample_weights
from outlay.train.step import TrainState


def evaluate(
    program: Program, state: TrainState, loss: Loss, batches: Iterable[tuple[Any, np.ndarray]]
) -> dict[str, float]:
    """Means of the loss and of every metric over all samples, each counted once by its weight.

    The state is only read. Batches are placed as the program's layout places training batches.

    Args:
        program: the training program.
        state: its state.
        loss: as for `train_step`; its `keys` are None, so that it leaves dropout out and
            uses the averages of its model state.
        batches: (batch, weights) pairs, as from `eval_batches`, of the training batch's shapes.

    Returns:
        The weighted mean of `loss` and of each metric.
    """
    mesh, objective = program.mesh, Objective(loss, has_state=jax.tree.leaves(program.state_shapes.model_state) != [])
    in_state = shardings(program.plan, program.state_shapes, mesh)
    in_batch = shardings(program.plan, program.batch_shapes, mesh, root="batch")
    whole = NamedSharding(mesh, PartitionSpec())

    def sums(state: TrainState, batch: Any, weights: jax.Array) -> dict[str, jax.Array]:
        counted = weights * sample_weights(batch, len(weights))
        sums, _ = objective.sums(state.params, state.model_state, batch, None, counted)
        return sums

    compiled = jax.jit(
        fetching(sums, program.plan, mesh), in_shardings=(in_state, in_batch, whole), out_shardings=whole
    )
    found = []
    for batch, weights in batches:
        beat(None, "evaluating")
        # One batch at a time: nothing runs ahead, and the sums are added in float64 on the host.
        found.append(jax.device_get(compiled(state, *_placed((batch, weights), (in_batch, whole)))))
    totals = {name: sum(float(sums[name]) for sums in found) for name in found[0]}
    metrics = sorted(totals.keys() - {"loss", "weight"})
    return {name: totals[name] / totals["weight"] for name in ("loss", *metrics)}


def _placed(arrays: Any, where: Any) -> Any:
    """Arrays where a jitted function takes them; it takes no host arrays over several processes."""
    return jax.tree.map(put, arrays, where)
