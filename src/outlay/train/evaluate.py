"""Evaluate a model: exact means over a data set, computed on the devices that hold the state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from outlay.arrays.check_arrays import leaf_differences
from outlay.arrays.host_values import hold, take_tree
from outlay.arrays.put import put
from outlay.arrays.shardings import shardings
from outlay.core.array_leaves import arrays_only, split_objects
from outlay.core.error_types import Problem, ProgramError
from outlay.core.flat_nodes import flat_nodes, users_nodes
from outlay.core.paths import flatten_paths, map_with_paths
from outlay.core.public_names import called_as
from outlay.core.quantities import counted
from outlay.jobs.heartbeat import beat
from outlay.program.program import Program
from outlay.train.check_step import as_metrics, num_samples
from outlay.train.data import eval_batches, is_read_by_number, num_of, rows_of
from outlay.train.example_sources import chunks_of
from outlay.train.metrics_file import as_numbers
from outlay.train.objective import Loss, Objective, Reduction, sample_weights, weighted_sum


@called_as("outlay.evaluate(program, state, examples)", batches="examples, the third argument: all of them")
def evaluate(
    program: Program, state: Any, examples: Any, *, loss: Loss | None = None, reduction: Reduction | None = None
) -> dict[str, float]:
    """Compute the mean over all examples of a program's outputs, counting every example once.

    The state is only read. Batches have the size of the program's batch and live where its layout places them; the last
    one is padded with examples that do not count. The entry `weight` of the examples, if present, weights each of them.

    Args:
        program: a program that only reads the state (`outlay.program(..., donate=False)`), whose outputs are arrays
            with one entry per sample, such as losses or correct answers; or, with `loss`, one of `outlay.train_step`.
        state: the state of the program.
        examples: a tree of arrays like the batch, with any number of entries; whatever `outlay.TrainData` takes; or
            what yields batches of any sizes, such as a generator or a loader.
        loss: a loss as for `train_step`. Its `keys` are None, so it skips dropout and uses the averages of its model
            state.
        reduction: as for `train_step`, if the loss returns one number for its batch. The mean is over examples: the
            rest after the last full batch is a smaller batch of its own, and a `sum` is divided by its examples. A
            `mean` over something else, such as tokens, is exact if the loss returns it as `(sum, count)`.

    Returns:
        The mean of every output by its path; with `loss`, of `loss` and every metric.

    Raises:
        ProgramError: the program trains but there is no loss, an output does not have one entry per sample, or the
            examples do not match the batch; the message lists every such array.

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
    if loss is None and program.donate:  # what donates its state returns a new one, and so trains (decision 41)
        raise ProgramError(
            "this program returns a new state, but evaluation only reads it\n  fix: outlay.evaluate(..., loss=loss), "
            "for a step of outlay.train_step; or outlay.program(..., donate=False), of a step that returns its outputs"
        )
    state = arrays_only(state)
    program = program.taking(state)
    state, batch_size = program.arrays_of(state), num_samples(program.batch_shapes)
    mesh = program.mesh
    in_state = shardings(program.plan, program.state_shapes, mesh)
    in_batch = shardings(program.plan, program.batch_shapes, mesh, root="batch")
    whole = NamedSharding(mesh, PartitionSpec())

    def sums(state: Any, batch: Any, weights: jax.Array) -> dict[str, jax.Array]:
        counted = weights * sample_weights(users_nodes(batch), len(weights))
        if loss is None:
            return _sums_of_outputs(program.step(state, batch)[1], counted)
        state = program.state_of(state)
        has_state = jax.tree.leaves(program.state_shapes.model_state) != []
        objects, (params, model_state) = split_objects((state.params, state.model_state))
        objective = Objective(loss, has_state, reduction, objects=objects)
        totals, _ = objective.sums(params, model_state, batch, None, counted)
        if reduction != "sum":
            return totals
        # `sums` counts the one number of the batch once for each of its samples.
        return {name: total if name == "weight" else total / len(weights) for name, total in totals.items()}

    run = sums
    if any(leaf.stored == "host" for leaf in program.plan.state):
        from outlay.program.host_state import fetch_from_host

        run = fetch_from_host(sums, program.plan, mesh)

    def compiled(in_batch: Any) -> Callable[..., dict[str, jax.Array]]:
        return jax.jit(run, in_shardings=(in_state, in_batch, whole), out_shardings=whole)

    # The last batch may be too small to split as the layout says, so every device computes all of it.
    everywhere = jax.tree.map(lambda _: whole, in_batch)
    sums_of_batch, sums_of_rest = compiled(in_batch), compiled(everywhere)
    parts = []
    for chunk in [examples] if is_read_by_number(examples) else chunks_of(examples):
        _check_examples(program, chunk, batch_size)
        for batch, weights in eval_batches(chunk, batch_size, padded=reduction is None):
            beat(None, "evaluating")
            run, where = (sums_of_batch, in_batch) if len(weights) == batch_size else (sums_of_rest, everywhere)
            # Loaders yield lists where a step takes a tuple, and mappings in an order of their own.
            by_path = dict(flatten_paths(batch)[0])
            batch = map_with_paths(lambda path, _, by_path=by_path: by_path[path], program.batch_shapes)
            # One batch at a time: simulated devices deadlock when many steps are in flight. Sum in float64 on the host.
            with program.context():
                # Put by hand: with several processes, jit does not accept host arrays.
                placed = jax.tree.map(put, (batch, weights), (where, whole))
                parts.append(jax.device_get(run(state, *placed)))
    if not parts:
        raise _no_examples()
    totals = {name: sum(np.asarray(sums[name], np.float64) for sums in parts) for name in parts[0]}
    metrics = sorted(totals.keys() - {"loss", "weight"})
    return {name: as_numbers(totals[name] / totals["weight"]) for name in ("loss", *metrics) if name in totals}


def _sums_of_outputs(outputs: Any, weights: jax.Array) -> dict[str, jax.Array]:
    """Sum a step's outputs over the samples of a batch, and sum the weights.

    Raises:
        ProgramError: an output does not have one number per sample; every such output is a problem of its own.
    """
    named = as_metrics(outputs)
    fix = "return one number per sample; evaluate takes the mean over all examples"
    problems = [
        Problem("not per sample", path or "the output", f"shape {leaf.shape}, expected {weights.shape}", fix)
        for path, leaf in named.items()
        if leaf.shape[:1] != weights.shape or leaf.ndim > 2
    ]
    if "" in named:
        problems.append(Problem("no name", "", "it is one array", 'return a dictionary: {"loss": losses}'))
    if "weight" in named:
        problems.append(Problem("taken name", "weight", "this name is reserved for the sample weights", "rename it"))
    if problems:
        raise ProgramError(f"{counted(len(problems), 'output')} of the program without a mean over samples:", problems)
    dtype = jnp.promote_types(weights.dtype, jnp.float32)
    sums = {path: weighted_sum(weights.astype(dtype), leaf.astype(dtype)) for path, leaf in named.items()}
    return {**sums, "weight": jnp.sum(weights.astype(dtype))}


def _no_examples() -> ProgramError:
    return ProgramError("there are no examples to evaluate on\n  fix: give one or more")


def _check_examples(program: Program, examples: Any, batch_size: int) -> None:
    """Raise if the examples cannot be cut into batches of the program."""
    if num_of(examples) < 1:
        raise _no_examples()
    first, problems = take_tree(flat_nodes(rows_of(examples, np.zeros(1, int))), "batch")
    if problems:
        raise ProgramError(hold("the examples hold", problems), problems)
    batch = jax.tree.map(lambda x: jax.ShapeDtypeStruct((batch_size, *x.shape[1:]), jnp.result_type(x)), first)
    problems = leaf_differences(batch, program.plan.of_kind("batch"), root="batch")
    if problems:
        head = f"the examples are not like the program's batch: {counted(len(problems), 'difference')}"
        raise ProgramError(head, problems)
