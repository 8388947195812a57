"""Exact means over a data set, computed where a program's state lives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from outlay.arrays.check_arrays import leaf_differences
from outlay.arrays.put import put
from outlay.arrays.shardings import shardings
from outlay.core.error_types import Problem, ProgramError, message
from outlay.core.quantities import counted
from outlay.jobs.heartbeat import beat
from outlay.program.program import Program
from outlay.program.storing import fetch_from_host
from outlay.train.contract import as_metrics, num_samples
from outlay.train.data import eval_batches, num_of, rows_of
from outlay.train.metrics_file import as_numbers
from outlay.train.objective import Loss, Objective, Reduction, sample_weights, weighted_sum


def evaluate(
    program: Program, state: Any, examples: Any, *, loss: Loss | None = None, reduction: Reduction | None = None
) -> dict[str, float]:
    """Means over all examples of what a program gives for each, every example counted once.

    The state is only read. Batches are as large as the program's, and live where its layout places them; the last one
    is filled up with examples that do not count. An entry `weight` of the examples says how much each of them does.

    Args:
        program: one that only reads (`outlay.program(..., donate=False)`), whose outputs are arrays with one entry per
            sample, such as losses and whether an answer was right; or, with `loss`, one of `outlay.train_step`.
        state: its state.
        examples: a tree of numpy arrays like the batch, with any number of entries; or examples in files.
        loss: as for `train_step`; its `keys` are None, so that it leaves dropout out and uses the averages of its model
            state.
        reduction: as for `train_step`, of a loss that returns one number for its batch. Its mean is over examples: what
            is left after the last whole batch is a smaller batch of its own, and a `sum` is divided by its examples.

    Returns:
        The mean of every output by its path; with `loss`, of `loss` and every metric.

    Raises:
        ProgramError: the program trains and there is no loss, outputs are not one entry per sample, or the examples are
            not like the batch; every array is listed.

    Example:
        >>> loss = lambda state, batch: {"loss": (batch["x"] @ state["w"] - batch["y"]) ** 2}
        >>> init = lambda key: {"w": jnp.zeros(2)}
        >>> batch = {"x": np.ones((8, 2), np.float32), "y": np.ones(8, np.float32)}
        >>> held_out = outlay.program(
        ...     loss, init, batch, layout=outlay.data_parallel(), mesh=outlay.mesh(data=8), donate=False)
        >>> examples = {"x": np.ones((11, 2), np.float32), "y": np.arange(11, dtype=np.float32)}
        >>> outlay.evaluate(held_out, held_out.init(jax.random.key(0)), examples)
        {'loss': 35.0}
    """
    if loss is None and program.donate:
        raise ProgramError(
            "this program returns a new state, and evaluation only reads one\n  fix: outlay.evaluate(..., loss=loss), "
            "for a step of outlay.train_step; or outlay.program(..., donate=False), of a step that returns its outputs"
        )
    batch_size = num_samples(program.batch_shapes)
    _check_examples(program, examples, batch_size)
    mesh = program.mesh
    in_state = shardings(program.plan, program.state_shapes, mesh)
    in_batch = shardings(program.plan, program.batch_shapes, mesh, root="batch")
    whole = NamedSharding(mesh, PartitionSpec())

    def sums(state: Any, batch: Any, weights: jax.Array) -> dict[str, jax.Array]:
        counted = weights * sample_weights(batch, len(weights))
        if loss is None:
            return _sums_of_outputs(program.step(state, batch)[1], counted)
        has_state = jax.tree.leaves(program.state_shapes.model_state) != []
        totals, _ = Objective(loss, has_state, reduction).sums(state.params, state.model_state, batch, None, counted)
        if reduction != "sum":
            return totals
        # A number for the whole batch was counted as that of each of its samples.
        return {name: total if name == "weight" else total / len(weights) for name, total in totals.items()}

    def compiled(in_batch: Any) -> Callable[..., dict[str, jax.Array]]:
        return jax.jit(
            fetch_from_host(sums, program.plan, mesh), in_shardings=(in_state, in_batch, whole), out_shardings=whole
        )

    # A smaller batch at the end may be too small to be split as the layout says, so every device takes all of it.
    everywhere = jax.tree.map(lambda _: whole, in_batch)
    sums_of_batch, sums_of_rest = compiled(in_batch), compiled(everywhere)
    parts = []
    for batch, weights in eval_batches(examples, batch_size, padded=reduction is None):
        beat(None, "evaluating")
        run, where = (sums_of_batch, in_batch) if len(weights) == batch_size else (sums_of_rest, everywhere)
        # One batch at a time: nothing runs ahead, and the sums are added in float64 on the host.
        with program.context():
            parts.append(jax.device_get(run(state, *_placed((batch, weights), (where, whole)))))
    totals = {name: sum(np.asarray(sums[name], np.float64) for sums in parts) for name in parts[0]}
    metrics = sorted(totals.keys() - {"loss", "weight"})
    return {name: as_numbers(totals[name] / totals["weight"]) for name in ("loss", *metrics) if name in totals}


def _sums_of_outputs(outputs: Any, weights: jax.Array) -> dict[str, jax.Array]:
    """Sums over a batch of what a step gives for each sample, and of the weights.

    Raises:
        ProgramError: with one problem per output that is not one number per sample.
    """
    named = as_metrics(outputs)
    fix = "return one number per sample, and leave the mean to evaluate: it is over all examples"
    problems = [
        Problem("not per sample", path or "the output", f"shape {leaf.shape}, wanted {weights.shape}", fix)
        for path, leaf in named.items()
        if leaf.shape[:1] != weights.shape or leaf.ndim > 2
    ]
    if "" in named:
        problems.append(Problem("no name", "", "it is one array", 'return a dictionary: {"loss": losses}'))
    if "weight" in named:
        problems.append(Problem("taken name", "weight", "what each sample counts is called so", "rename it"))
    if problems:
        raise ProgramError(
            message(f"{counted(len(problems), 'output')} of the program without a mean over samples:", problems)
        )
    dtype = jnp.promote_types(weights.dtype, jnp.float32)
    sums = {path: weighted_sum(weights.astype(dtype), leaf.astype(dtype)) for path, leaf in named.items()}
    return {**sums, "weight": jnp.sum(weights.astype(dtype))}


def _check_examples(program: Program, examples: Any, batch_size: int) -> None:
    """Raise where the examples cannot be cut into batches of the program."""
    if num_of(examples) < 1:
        raise ProgramError("there are no examples to evaluate on\n  fix: give one or more")
    first = rows_of(examples, np.zeros(1, int))
    batch = jax.tree.map(lambda x: jax.ShapeDtypeStruct((batch_size, *x.shape[1:]), jnp.result_type(x)), first)
    problems = leaf_differences(batch, program.plan.of_kind("batch"), root="batch")
    if problems:
        head = f"the examples are not like the program's batch: {counted(len(problems), 'difference')}"
        raise ProgramError(message(head, problems))


def _placed(arrays: Any, where: Any) -> Any:
    """Arrays where a jitted function takes them; it takes no host arrays over several processes."""
    return jax.tree.map(put, arrays, where)
