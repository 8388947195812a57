"""The protocol `Execution`, which each way of executing a program implements; what a program tells of it; first runs.

The first run is waited for: JAX returns before a step has run, so errors of XLA come much later. They are then said by
whatever reads a value first, and XLA repeats itself once for each function in between.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import jax
from jax.sharding import Mesh

from outlay.arrays.shardings import is_elsewhere
from outlay.core.error_types import ProgramError
from outlay.core.paths import flatten_paths
from outlay.core.quantities import counted
from outlay.devices.mesh_info import processes_of
from outlay.layout.layout import Layout
from outlay.layout.plan import Plan
from outlay.program.compiler_options import CompilerOptions, RequestedOptions
from outlay.program.modes import Mode, Step
from outlay.program.one_step import OneStep
from outlay.program.program_arguments import is_graph_loop, no_stages

if TYPE_CHECKING:
    from outlay.graph.rows import Rows
    from outlay.program.device_group import DeviceGroup
from outlay.program.passes import Planned

_SAID_AGAIN = re.compile(r"(\b[A-Z][\w ]{8,60}: )\1+")


class Execution(Protocol):
    """A way to execute a program: one step over the whole mesh (`OneStep`), a graph (`PlacedGraph`), or stages.

    What all ways share, above all the checks, is in `Program`.
    """

    plan: Plan
    state_shapes: Any
    batch_shapes: Any
    output_shapes: Any
    named_shapes: dict[str, Any]
    rows: tuple[Rows, ...]
    device_groups: tuple[DeviceGroup, ...]
    num_steps_at_once: int
    runs_per_shard: bool
    sums_over_batch: bool
    steps_in_mesh: bool
    is_exact: bool
    sends_batch: bool
    traced_step: Any
    planned: Planned

    @property
    def compiler_options(self) -> CompilerOptions:
        """The compiler options besides the defaults; once compiled, those it was compiled with."""
        ...

    def check_key(self, key: Any) -> None:
        """Raise for a key whose state would differ from the plan."""
        ...

    def init(self, key: Any) -> Any:
        """Initialize the state where the plan puts it."""
        ...

    def traced_init(self, key: Any) -> Any:
        """Return the trace of init, to be compared with another; None if there is none."""
        ...

    def compiled_trace(self) -> Any:
        """Return the trace that is compiled; None if the step is traced anew for its mode."""
        ...

    def lower(self) -> tuple[jax.stages.Lowered, ...]:
        """Lower the step: one program, or one for each group of devices."""
        ...

    def compared(self, lowered: Sequence[jax.stages.Lowered]) -> Sequence[jax.stages.Lowered]:
        """Return what all processes have to have alike, of what `lower` returned here or besides it."""
        ...

    def lowered_trace(self) -> Any:
        """Return the jaxpr of what is lowered, traced anew; None if there are several programs."""
        ...

    def compile(self, lowered: Sequence[jax.stages.Lowered]) -> tuple[jax.stages.Compiled, ...]:
        """Compile what `lower` returned."""
        ...

    def runner(self, compiled: Sequence[jax.stages.Compiled]) -> Callable[[Any, Any], Any]:
        """Return what a call runs: from state and batch to the new state and outputs, or outputs alone."""
        ...

    def context(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which the step is traced."""
        ...


class Executed:
    """What a program tells of its execution, which decides it."""

    _execution: Execution

    @property
    def plan(self) -> Plan:
        """Where every leaf of the state and the batch lives, and why."""
        return self._execution.plan

    @property
    def state_shapes(self) -> Any:
        """The state as shapes and dtypes."""
        return self._execution.state_shapes

    @property
    def batch_shapes(self) -> Any:
        """The batch as shapes and dtypes."""
        return self._execution.batch_shapes

    @property
    def output_shapes(self) -> Any:
        """The step's outputs as shapes and dtypes; None if the step only makes sense on shards."""
        return self._execution.output_shapes

    @property
    def named_shapes(self) -> dict[str, Any]:
        """The values inside the step that rules can name, and its outputs, as shapes and dtypes."""
        return self._execution.named_shapes

    @property
    def rows(self) -> tuple[Any, ...]:
        """For a graph, the parts that are split by rows over the same devices."""
        return self._execution.rows

    @property
    def device_groups(self) -> tuple[Any, ...]:
        """For a graph in mode placed, the groups of parts that share devices; else empty."""
        return self._execution.device_groups

    @property
    def num_steps_at_once(self) -> int:
        """For a graph, the number of its steps in one dispatch; else 1."""
        return self._execution.num_steps_at_once

    @property
    def runs_per_shard(self) -> bool:
        """Whether the whole step runs on each device's shards, and only makes sense there."""
        return self._execution.runs_per_shard

    @property
    def steps_in_mesh(self) -> bool:
        """Whether the step is traced in the context of the mesh; False if it sets another."""
        return self._execution.steps_in_mesh

    @property
    def is_exact(self) -> bool:
        """Whether it computes the same bits on any devices, as parts of a graph do."""
        return self._execution.is_exact

    @property
    def sends_batch(self) -> bool:
        """Whether a call sends each leaf of the batch to the devices that read it, from the host."""
        return self._execution.sends_batch

    @property
    def traced_step(self) -> Any:
        """The traced step, on whole arrays, as a jaxpr; None where it has to be traced for that."""
        return self._execution.traced_step

    def traced_init(self, key: Any) -> Any:
        """Return the trace of init, to be compared with another; None if there is none."""
        return self._execution.traced_init(key)

    def compiled_trace(self) -> Any:
        """Return the trace of the step that is compiled; None if it is traced anew for its mode."""
        return self._execution.compiled_trace()

    def lowered_trace(self) -> Any:
        """Return the jaxpr of what is lowered, traced anew; None in mode placed."""
        return self._execution.lowered_trace()

    @property
    def passes(self) -> tuple[str, ...]:
        """What changes the step before it is compiled, by name, the first nearest to the step; often nothing."""
        return self._execution.planned.passes

    @property
    def why_summed_each_time(self) -> str:
        """Why gradients are summed over devices after each microbatch and not once, in words; empty if they are not.

        It is known once the program is lowered.
        """
        return self._execution.planned.notes.get("summed_once", "")

    @property
    def pipelines(self) -> str:
        """Which loop over layers runs as a pipeline, and in how many ticks, in words; empty if none does."""
        return self._execution.planned.notes.get("pipelining", "")

    @property
    def schedule(self) -> Any:
        """In which order the stages of a pipeline work in mode placed, a `StageSchedule`; None elsewhere."""
        return self._execution.planned.schedule

    @property
    def peak_held(self) -> tuple[int, ...]:
        """Of a pipeline in mode placed, the most microbatches that each stage held in the last call; else empty.

        It is counted as they run: from a forward pass until the backward pass has taken what that kept.
        """
        return getattr(self._execution, "peak_held", ())

    @property
    def contexts(self) -> str:
        """How each call of attention whose tokens are split exchanges them, in words; empty if there is none."""
        return self._execution.planned.notes.get("split_attention", "")

    @property
    def fp8(self) -> str:
        """How many products of parameters are in FP8, and how, in words; empty if no rule asks for it."""
        return self._execution.planned.notes.get("fp8_products", "")

    @property
    def compiler_options(self) -> CompilerOptions:
        """The compiler options besides the defaults; once compiled, those it was compiled with."""
        return self._execution.compiler_options

    def context(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context for tracing: the mesh, so that a model may name its axes, unless the step sets another."""
        return self._execution.context()


def way_to_execute(
    step: Step,
    init: Callable[[Any], Any],
    inputs: Any,
    layout: Layout,
    mesh: Mesh,
    mode: Mode,
    options: RequestedOptions,
    *,
    donate: bool,
    schedule: Any,
) -> Execution:
    """Return what executes a program: one step, the parts of a graph or the stages of a pipeline.

    Raises:
        ProgramError: a schedule is given where no stages follow it; or step, layout or mesh do not fit the mode.
    """
    has_stages = mode == "placed" and bool(layout.stage_axes) and not is_graph_loop(step)
    if schedule is not None and not has_stages:
        raise no_stages(mode)
    if has_stages:
        from outlay.program.placed_stages import PlacedStages

        return PlacedStages(step, init, inputs, layout, mesh, options, schedule)
    if mode == "placed":
        from outlay.program.placed_graph import PlacedGraph

        return PlacedGraph(step, init, inputs, layout, mesh, options)
    return OneStep(step, init, inputs, layout, mesh, mode, options, donate=donate)


T = TypeVar("T")


def only_part(what: str, parts: Sequence[T], mode: str) -> T:
    """Return what a program has as one, such as its compiled step; raise if it has one for each group of devices."""
    if len(parts) == 1:
        return parts[0]
    raise ProgramError(
        f"in mode {mode} this program has {counted(len(parts), 'compiled step')}, one for each of its "
        f"program.device_groups, or several for each stage of its pipeline\n  fix: program.{what}_parts"
    )


def run_first(run: Callable[[Any, Any], Any], state: Any, batch: Any) -> Any:
    """Return `run(state, batch)` when it has run.

    Raises:
        ProgramError: what was passed could not be computed, so that it is not the step that failed.
    """
    for what, tree in (("state", state), ("batch", batch)):
        try:
            jax.block_until_ready(tree)
        except jax.errors.JaxRuntimeError as error:
            raise ProgramError(
                f"the {what} that was passed could not be computed: the function that made it failed, not this step\n"
                f"  XLA says: {said_once(str(error)).strip()}\n"
                f"  fix: jax.block_until_ready({what}) after the function that makes it; outlay doctor --message says "
                "what a message of XLA means"
            ) from None
    return jax.block_until_ready(run(state, batch))


def check_outputs(state: Any, plan: Plan, mesh: Mesh) -> None:
    """Compare where the first step left its state with where the plan says.

    Raises:
        ProgramError: some leaf came back elsewhere.
    """
    planned = {leaf.path: leaf for leaf in plan}
    leaves = flatten_paths(state)[0]
    if any(is_elsewhere(leaf, planned[path], mesh) for path, leaf in leaves):  # else nothing has to be worded
        from outlay.program.diagnose import elsewhere

        if problem := elsewhere(leaves, plan, mesh):
            raise problem


def wait_for_others(first_run_of: str, step: Callable[..., Any], mesh: Mesh) -> None:
    """Wait until all processes of a mesh are here, if there are several.

    Raises:
        ProgramError: some have not arrived.
    """
    if processes_of(mesh):
        from outlay.program.consistency import wait_for_all

        wait_for_all(first_run_of, step, mesh)


def said_once(text: str) -> str:
    """Leave out what XLA repeats.

    >>> said_once("INTERNAL: Error dispatching computation: Error dispatching computation: no memory")
    'INTERNAL: Error dispatching computation: no memory'
    """
    return _SAID_AGAIN.sub(r"\1", text)
