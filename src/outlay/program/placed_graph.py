"""Mode placed: the parts of a graph as programs of their own, each on its group of devices."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from outlay.arrays.put import put
from outlay.arrays.shardings import ROWS, shardings
from outlay.core.error_types import ProgramError
from outlay.core.jax_compat import without_compilation_cache
from outlay.core.jax_tracing import fresh_traces
from outlay.core.paths import (
    flatten_paths,
    map_with_paths,
)
from outlay.devices.mesh_info import MeshInfo
from outlay.graph.graph_loop import GraphLoop, count_steps, results
from outlay.graph.rows import Rows
from outlay.graph.step_graph import CACHE, INPUTS
from outlay.graph.subgraph import Subgraph
from outlay.layout.check_rules import OUTPUTS
from outlay.layout.layout import Layout
from outlay.program.abstract import abstract_inputs, abstract_step, named
from outlay.program.compiler_options import RequestedOptions, compiler_options
from outlay.program.device_group import DeviceGroup, Dispatch, joined, sent_between_processes, split_state
from outlay.program.diagnose import diagnose
from outlay.program.explicit import state_shapes
from outlay.program.passes import Planned
from outlay.program.placed_plan import Positions, plan_placed, positions_of_parts
from outlay.program.process_exchange import ProcessExchange
from outlay.program.row_checks import check_rows


def _without_mesh(method: Any) -> Any:
    """Run a method without the mesh that the user has set: each device group has its own."""

    @functools.wraps(method)
    def run(*args: Any) -> Any:
        with jax.set_mesh(None):
            return method(*args)

    return run


class PlacedGraph:
    """Executes a program in mode placed; see the protocol `Execution`.

    Parts on the same devices are one program. In each dispatch every program runs the same number of steps: the least
    latency of what groups read from one another. What others read is sent to their devices, and nowhere else. Nothing
    waits: a program runs on while others still compute what it does not need yet.
    """

    runs_per_shard = False
    sums_over_batch = False
    steps_in_mesh = True
    is_exact = True
    sends_batch = True
    traced_step = None

    @_without_mesh
    def __init__(
        self, step: Any, init: Callable[[Any], Any], inputs: Any, layout: Layout, mesh: Mesh, options: RequestedOptions
    ) -> None:
        _check_step(step, mesh, options)
        self.step, self._mesh = step, mesh
        self.compiler_options = compiler_options("none", mesh)
        with jax.set_mesh(mesh):
            user_shapes = state_shapes(init, mesh)
        self.batch_shapes = abstract_inputs(inputs)
        self.named_shapes = abstract_step(step, user_shapes, self.batch_shapes).intermediates
        self.output_shapes = self.named_shapes.get(OUTPUTS)
        num_steps, info = count_steps(self.batch_shapes), MeshInfo.of(mesh)
        positions = positions_of_parts(step.graph, layout, user_shapes, info)
        together: dict[Positions, list[str]] = {}
        for name in step.graph.parts:
            together.setdefault(positions[name], []).append(name)
        split: dict[Positions, Rows] = {
            at: Rows.of(step.graph, tuple(names), user_shapes, ROWS, len(at))
            for at, names in together.items()
            if len(at) > 1
        }
        self.rows = tuple(split.values())
        for rows in self.rows:
            check_rows(rows)
        self.state_shapes = jax.eval_shape(
            lambda state: functools.reduce(lambda state, rows: rows.pad(state), self.rows, state), user_shapes
        )
        self.device_groups = tuple(
            self._group(tuple(names), tuple(mesh.devices.flat[i] for i in at), split.get(at), num_steps)
            for at, names in together.items()
        )
        self.plan = plan_placed(step.graph, layout, self.state_shapes, self.batch_shapes, info, self.rows)
        self.planned = Planned(step, "placed", mesh, layout, self.plan, shapes=(self.state_shapes, self.batch_shapes))
        self.num_steps_at_once = min(num_steps, _least_latency(step, self.device_groups) or num_steps)
        self._num_steps = num_steps
        self._makers = [group.init(init) for group in self.device_groups]
        self._spans = len({device.process_index for device in mesh.devices.flat}) > 1

    def check_key(self, key: Any) -> None:
        """Accept any kind of key: this mode compares no leaves of the state."""

    def traced_init(self, key: Any) -> None:
        """Return None: each group of devices makes its own state."""

    def compiled_trace(self) -> None:
        """Return None: each group of devices has a program of its own."""

    def compared(self, lowered: Sequence[jax.stages.Lowered]) -> Sequence[jax.stages.Lowered]:
        """Return what all processes have to have alike: all of it, since each lowers every group's program."""
        return lowered

    def lowered_trace(self) -> None:
        """Return None, likewise."""

    @_without_mesh
    def init(self, key: Any) -> Any:
        """Initialize the state, each part on its devices and nowhere else."""
        made = [
            make(group.spread(key)) if self._runs(group) else group.elsewhere()
            for make, group in zip(self._makers, self.device_groups, strict=True)
        ]
        caches = [state.pop(CACHE) for state in made]
        return joined(made, caches)

    @_without_mesh
    def lower(self) -> tuple[jax.stages.Lowered, ...]:
        """Lower the steps of a dispatch, one program for each group."""
        with fresh_traces():
            return tuple(group.steps(self.num_steps_at_once) for group in self.device_groups)

    @_without_mesh
    def compile(self, lowered: Sequence[jax.stages.Lowered]) -> tuple[jax.stages.Compiled, ...]:
        """Compile them, and what begins and ends a call."""
        with without_compilation_cache(self._mesh.devices.flat[0]):
            self._prologues_epilogues  # noqa: B018  here, since what follows is timed
            # Of groups of other processes, these compile them.
            compiled: list[Any] = [
                one.compile() if self._runs(group) else None
                for one, group in zip(lowered, self.device_groups, strict=True)
            ]
            return tuple(compiled)

    @_without_mesh
    def runner(self, compiled: Sequence[jax.stages.Compiled]) -> Callable[[Any, Any], tuple[Any, Any]]:
        """Return the function that runs all steps, dispatch by dispatch."""
        whole, rest = divmod(self._num_steps, self.num_steps_at_once)
        programs: list[tuple[int, Sequence[Any]]] = [(whole, compiled)]
        if rest:
            programs.append(
                (1, [group.steps(rest).compile() if self._runs(group) else None for group in self.device_groups])
            )
        exchange = None
        if self._spans:
            sent = sent_between_processes(self.device_groups, self.step.graph, self.state_shapes[CACHE])
            exchange = ProcessExchange(list(self._mesh.devices.flat), sent)
        return functools.partial(self._run, Dispatch(self.device_groups, programs, exchange))

    def _runs(self, group: DeviceGroup) -> bool:
        return group.is_here or not self._spans

    @functools.cached_property
    @_without_mesh
    def _prologues_epilogues(self) -> list[tuple[Any, Any]]:
        return [
            group.compile_prologue_epilogue(is_sent=self._spans) if self._runs(group) else (None, None)
            for group in self.device_groups
        ]

    @functools.cached_property
    def _results(self) -> ProcessExchange:
        """What gives every process the results of all."""
        sent: dict[int, dict[Any, Any]] = {}
        for number, group in enumerate(self.device_groups):
            shapes = {(number, path): leaf for path, leaf in flatten_paths(group.result_shapes())[0]}
            sent.setdefault(group.processes[0], {}).update({name: (leaf, "whole") for name, leaf in shapes.items()})
        return ProcessExchange(list(self._mesh.devices.flat), sent)

    @_without_mesh
    def _run(self, dispatch: Dispatch, state: Any, batch: Any) -> tuple[Any, Any]:
        if jax.tree.structure((state, batch)) != self._structure:
            problem = diagnose(state, batch, (self.state_shapes, self.batch_shapes), self.plan, self._mesh)
            assert problem is not None
            raise problem
        inputs = [
            {name: group.spread(batch[name]) for name in group.subgraph.inputs} if self._runs(group) else {}
            for group in self.device_groups
        ]
        # From the host, such as one that was just read from a file.
        if not all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(state)):
            state = (
                put(state, self.plan, self._mesh)
                if self._spans
                else jax.device_put(state, shardings(self.plan, self.state_shapes, self._mesh))
            )
        own, caches = split_state(state, self.device_groups)
        rest = [
            begin({**own_state, "cache": cache}) if begin else None
            for (begin, _), own_state, cache in zip(self._prologues_epilogues, own, caches, strict=True)
        ]
        dispatch(own, rest, caches, inputs)
        ended: list[Any] = [
            end(own_state, left) if end else None
            for (_, end), own_state, left in zip(self._prologues_epilogues, own, rest, strict=True)
        ]
        if self._spans:
            ended = self._from_all(ended)
        buffers, not_finite = {}, {}
        for these, first in ended:
            buffers |= these
            not_finite |= first
        return joined(own, caches), results(
            {one.key: buffers[one.key] for one in self.step.recorded_outputs}, not_finite
        )

    def _from_all(self, ended: Sequence[Any]) -> list[Any]:
        """Return the results of all groups from the groups of this process."""
        own = {
            (number, path): leaf
            for number, result in enumerate(ended)
            if result is not None
            for path, leaf in flatten_paths(result)[0]
        }
        everything = self._results(own)
        return [
            map_with_paths(lambda path, _, number=number: everything[number, path], group.result_shapes())
            for number, group in enumerate(self.device_groups)
        ]

    @functools.cached_property
    def _structure(self) -> Any:
        return jax.tree.structure((self.state_shapes, self.batch_shapes))

    def context(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context of the mesh, whose axes a part may name."""
        return jax.set_mesh(self._mesh)

    def _group(
        self, names: tuple[str, ...], devices: tuple[Any, ...], rows: Rows | None, num_steps: int
    ) -> DeviceGroup:
        graph = self.step.graph
        recorded = tuple(one for one in self.step.recorded_outputs if one.part in names)
        subgraph = Subgraph(graph, names, recorded, rows.num if rows else {}, ROWS)
        inputs = {name: self.batch_shapes[name] for name in subgraph.inputs}
        return DeviceGroup(subgraph, devices, rows, self.state_shapes, inputs, num_steps)


def _least_latency(step: GraphLoop, device_groups: tuple[DeviceGroup, ...]) -> int | None:
    """Return the least latency of what crosses from one group to another; None if nothing does."""
    home = {name: group for group in device_groups for name in group.names}
    return min(
        (
            source.latency
            for name, part in step.graph.parts.items()
            for source in part.sources
            if source.part != INPUTS and home[source.part] is not home[name]
        ),
        default=None,
    )


def _check_step(step: Any, mesh: Mesh, options: RequestedOptions) -> None:
    if options not in ("preset", "none"):
        raise ProgramError(
            "in mode placed there are many programs, each on one device, and compiler options are for one"
            "\n  fix: XLA_FLAGS, or leave them out"
        )
    if not isinstance(step, GraphLoop):
        raise ProgramError(
            f"mode placed runs a graph of parts, or the stages of a pipeline; {named(step)} is no graph, and the "
            "layout has no pipeline rule\n"
            "  fix: outlay.graph.GraphLoop(graph), where graph is a StepGraph; or a rule of "
            'outlay.layout.pipeline("stage", microbatches=8); or mode auto or manual'
        )
    processes = {device.process_index for device in mesh.devices.flat}
    if len(processes) > 1 and jax.process_count() == 1:
        raise ProgramError(
            f"in mode placed each process runs its own parts, and this mesh of {len(processes)} hosts is compile-only\n"
            "  fix: a mesh of one host"
        )
