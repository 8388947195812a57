"""Run several steps of a program in one compiled call: dispatching a small step costs more than computing it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from outlay.arrays.shardings import OnHost, shardings
from outlay.core.error_types import ProgramError
from outlay.devices.mesh_info import is_explicit
from outlay.program.abstract import between_users_nodes, name_of
from outlay.program.compiler_options import compile_with
from outlay.program.consistency import wait_for_all
from outlay.program.diagnose import diagnose
from outlay.program.host_state import out_shardings, typed
from outlay.program.program import Program
from outlay.program.program_arguments import take_arguments, without_shared_memory
from outlay.program.trace_on_mesh import on_mesh

Several = Callable[[Any, Sequence[Any]], tuple[Any, Any]]


def several_steps(program: Program, num_steps: int) -> Several:
    """Compile a call that takes several steps of a program: a scan over as many batches.

    Args:
        program: a program that trains, in mode auto or manual.
        num_steps: how many steps a call runs.

    Returns:
        `run(state, batches) -> (state, outputs)`, with one batch per step and outputs stacked along a new first dim.
        The results equal those of separate calls up to rounding. The state is donated.

    Raises:
        ProgramError: the program only reads, or is a graph, or its mesh has Explicit axes.

    Example:
        >>> step = lambda state, batch: (state + batch.sum(), {"mean": batch.mean()})
        >>> program = outlay.program(
        ...     step, lambda key: 0.0, np.ones(8), layout=outlay.data_parallel(), mesh=outlay.mesh(data=8))
        >>> run = several_steps(program, 3)
        >>> state, outputs = run(program.init(None), [np.full(8, number) for number in (1.0, 2.0, 3.0)])
        >>> float(state), outputs["mean"].tolist()
        (48.0, [1.0, 2.0, 3.0])
    """
    check_can_repeat(program)
    plan, mesh = program.plan, program.mesh
    in_state = shardings(plan, program.state_shapes, mesh)
    in_batch = shardings(plan, program.batch_shapes, mesh, root="batch")
    step = program.step_in(program.mode, as_compiled=True)

    def one(state: Any, batch: Any) -> tuple[Any, Any]:
        state, outputs = step(state, batch)
        # A scan's carry has no sharding of its own: left open, XLA may settle on another one than the plan's.
        return jax.tree.map(_in_place, state, in_state), outputs

    def take(state: Any, batches: Sequence[Any]) -> tuple[Any, Any]:
        return jax.lax.scan(one, state, jax.tree.map(_stacked, in_batch, *batches))

    jitted = jax.jit(
        take,
        in_shardings=(in_state, (in_batch,) * num_steps),
        out_shardings=(out_shardings(in_state), None),
        donate_argnums=0,
    )
    shapes = (typed(program.state_shapes, plan, mesh), (program.batch_shapes,) * num_steps)
    name = f"{num_steps} steps of {name_of(program.step)}"
    lowered = on_mesh(mesh, program.mode, jitted.lower, shapes, name, program.context)
    compiled, _ = compile_with(lowered, program.compiler_options, mesh.devices.flat[0])
    wait_for_all("several steps", program.step, mesh)

    call = between_users_nodes(compiled, compiled)
    others: dict[int, Several] = {}

    def run(state: Any, batches: Sequence[Any]) -> tuple[Any, Any]:
        taking = program.taking(state)
        if taking is not program:  # the state has other flags
            if id(taking) not in others:
                others[id(taking)] = several_steps(taking, num_steps)
            return others[id(taking)](state, batches)
        arrays = program.arrays_of(state)
        state, is_whole = arrays, arrays is not state
        try:
            state, outputs = call(*without_shared_memory(*take_arguments(state, tuple(batches))))
            return program.state_of(state) if is_whole else state, outputs
        except ProgramError:  # it says already what is wrong
            raise
        except (RuntimeError, ValueError, TypeError) as error:
            planned = (program.state_shapes, program.batch_shapes)
            problems = (diagnose(state, batch, planned, plan, mesh) for batch in batches)
            problem = next((problem for problem in problems if problem is not None), None)
            if problem is None:
                raise
            raise problem from error

    return run


def _in_place(leaf: jax.Array, sharding: NamedSharding | OnHost) -> jax.Array:
    return leaf if isinstance(sharding, OnHost) else jax.lax.with_sharding_constraint(leaf, sharding)


def _stacked(sharding: NamedSharding, *leaves: jax.Array) -> jax.Array:
    """Stack a leaf of every batch along a new first dim, with each shard where it is."""
    spec = PartitionSpec(None, *sharding.spec)
    return jax.lax.with_sharding_constraint(jnp.stack(leaves), NamedSharding(sharding.mesh, spec))


def check_can_repeat(program: Program) -> None:
    """Raise if several steps of a program cannot run in one call.

    Raises:
        ProgramError: it only reads, or is a graph, or its mesh has Explicit axes.
    """
    if not program.donate:
        reason = "it only reads the state"
    elif program.schedule is not None:
        reason = "the stages of its pipeline are programs of their own, dispatched one after the other"
    elif program.mode == "placed" or program.rows or program.num_steps_at_once > 1:
        reason = "its step is a GraphLoop, which takes several steps a call by itself"
    elif is_explicit(program.mesh):
        reason = "its mesh has Explicit axes"
    else:
        return
    raise ProgramError(f"this program cannot run several steps in a call: {reason}\n  fix: steps_per_call=1")
