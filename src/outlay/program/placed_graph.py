"""Mode placed: the parts of a graph as programs of their own, each on its group of devices."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from outlay.arrays.shardings import ROWS, shardings
from outlay.core.error_types import LayoutError, Problem, ProgramError
from outlay.core.jax_compat import without_compilation_cache
from outlay.core.jax_tracing import fresh_traces
from outlay.core.paths import first_part, flatten_paths, join_parts, matches, pattern_parts, split_path, under
from outlay.core.quantities import counted, format_bytes
from outlay.core.sizes import num_bytes
from outlay.core.suggest import did_you_mean
from outlay.devices.mesh_info import MeshInfo
from outlay.graph.graph_loop import GraphLoop, count_steps, results
from outlay.graph.rows import Rows
from outlay.graph.step_graph import CACHE, INPUTS, StepGraph
from outlay.graph.subgraph import Subgraph
from outlay.layout.check_rules import OUTPUTS
from outlay.layout.layout import Layout
from outlay.layout.leaf_plan import LeafPlan
from outlay.layout.placement import On, Replicate
from outlay.layout.plan import Plan
from outlay.layout.rule import Rule
from outlay.program.abstract import abstract_inputs, abstract_step, named
from outlay.program.compiler_options import RequestedOptions, compiler_options
from outlay.program.device_group import DeviceGroup, Dispatch, joined, split_state
from outlay.program.diagnose import diagnose
from outlay.program.explicit import state_shapes


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
        self.output_shapes = abstract_step(step, user_shapes, self.batch_shapes).intermediates.get(OUTPUTS)
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
        self.state_shapes = jax.eval_shape(
            lambda state: functools.reduce(lambda state, rows: rows.pad(state), self.rows, state), user_shapes
        )
        self.device_groups = tuple(
            self._group(tuple(names), tuple(mesh.devices.flat[i] for i in at), split.get(at), num_steps)
            for at, names in together.items()
        )
        self.plan = plan_placed(step.graph, layout, self.state_shapes, self.batch_shapes, info, self.rows)
        self.num_steps_at_once = min(num_steps, _least_latency(step, self.device_groups) or num_steps)
        self._num_steps = num_steps
        self._makers = [group.init(init) for group in self.device_groups]

    def check_key(self, key: Any) -> None:
        """Accept any kind of key: this mode compares no leaves of the state."""

    @_without_mesh
    def init(self, key: Any) -> Any:
        """Initialize the state, each part on its devices and nowhere else."""
        made = [
            make(jax.device_put(key, group.whole)) for make, group in zip(self._makers, self.device_groups, strict=True)
        ]
        caches = [state.pop(CACHE) for state in made]
        return joined(made, caches)

    @_without_mesh
    def per_shard(self, function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        """Return the function: each part runs on devices of its own."""
        return function

    def lower(self) -> tuple[jax.stages.Lowered, ...]:
        """Lower the steps of a dispatch, one program for each group."""
        with fresh_traces():
            return tuple(group.steps(self.num_steps_at_once) for group in self.device_groups)

    @_without_mesh
    def compile(self, lowered: Sequence[jax.stages.Lowered]) -> tuple[jax.stages.Compiled, ...]:
        """Compile them, and what begins and ends a call."""
        with without_compilation_cache(self._mesh.devices.flat[0]):
            self._ends  # noqa: B018  here, since what follows is timed
            return tuple(one.compile() for one in lowered)

    @_without_mesh
    def runner(self, compiled: Sequence[jax.stages.Compiled]) -> Callable[[Any, Any], tuple[Any, Any]]:
        """Return the function that runs all steps, dispatch by dispatch."""
        whole, rest = divmod(self._num_steps, self.num_steps_at_once)
        programs: list[tuple[int, Sequence[Any]]] = [(whole, compiled)]
        if rest:
            programs.append((1, [group.steps(rest).compile() for group in self.device_groups]))
        return functools.partial(self._run, Dispatch(self.device_groups, programs))

    @functools.cached_property
    @_without_mesh
    def _ends(self) -> list[tuple[Any, Any]]:
        return [group.ends() for group in self.device_groups]

    @_without_mesh
    def _run(self, dispatch: Dispatch, state: Any, batch: Any) -> tuple[Any, Any]:
        if jax.tree.structure((state, batch)) != self._structure:
            problem = diagnose(state, batch, (self.state_shapes, self.batch_shapes), self.plan, self._mesh)
            assert problem is not None
            raise problem
        inputs = [
            {name: jax.device_put(batch[name], group.whole) for name in group.subgraph.inputs}
            for group in self.device_groups
        ]
        # From the host, such as one that was just read from a file.
        if not all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(state)):
            state = jax.device_put(state, shardings(self.plan, self.state_shapes, self._mesh))
        own, caches = split_state(state, self.device_groups)
        rest = [
            begin({**mine, "cache": cache}) for (begin, _), mine, cache in zip(self._ends, own, caches, strict=True)
        ]
        dispatch(own, rest, caches, inputs)
        buffers, not_finite = {}, {}
        for (_, end), mine, left in zip(self._ends, own, rest, strict=True):
            these, first = end(mine, left)
            buffers |= these
            not_finite |= first
        return joined(own, caches), results(
            {one.key: buffers[one.key] for one in self.step.recorded_outputs}, not_finite
        )

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
            f"mode placed runs a graph of parts, and {named(step)} is not one\n"
            "  fix: outlay.graph.GraphLoop(graph), where graph is a StepGraph; or mode auto or manual"
        )
    processes = {device.process_index for device in mesh.devices.flat}
    if len(processes) > 1:
        raise ProgramError(
            f"mode placed dispatches the steps of all parts from one process, and this mesh spans {len(processes)}\n"
            '  fix: use the devices of one process, or outlay.layout.by_rows in mode="manual", which runs in any number'
        )


Positions = tuple[int, ...]


def positions_of_parts(graph: StepGraph, layout: Layout, state: Any, mesh: MeshInfo) -> dict[str, Positions]:
    """Return the positions in the mesh of every part's devices.

    Raises:
        LayoutError: a rule names no part; or a part has no device, several groups of devices, or devices that it
            cannot be split over; all are listed.
    """
    paths: dict[str, list[str]] = {name: [] for name in graph.parts}
    for path, _ in flatten_paths(state)[0]:
        first, *rest = split_path(path)
        owner = rest[0] if first == CACHE and rest else first
        paths.setdefault(owner, []).append(path)
    device_groups = {name: _positions_of(name, paths[name], layout) for name in graph.parts}
    problems = [*_rule_problems(graph, layout), *_part_problems(graph, device_groups, state, mesh)]
    if problems:
        raise LayoutError(
            f"the layout does not place the parts of this graph on {mesh}: {counted(len(problems), 'problem')}",
            problems,
        )
    return {name: tuple(sorted(first)) for name, (first, *_) in device_groups.items()}


def plan_placed(
    graph: StepGraph, layout: Layout, state: Any, inputs: Any, mesh: MeshInfo, rows: tuple[Rows, ...]
) -> Plan:
    """Plan each part's state and outputs on its devices, and inputs where they are read.

    Args:
        graph: the graph.
        layout: rules that `positions_of_parts` found nothing wrong with.
        state: the state as shapes, with rows filled up.
        inputs: the inputs as shapes.
        mesh: the mesh.
        rows: the rows of the parts on several devices.
    """
    # Whether they match was asked of whole parts, in `positions_of_parts`.
    rules = [dataclasses.replace(rule, optional=True) if isinstance(rule.placement, On) else rule for rule in layout]
    plan = Layout(rules).plan(state, mesh)
    leaves = [_by_rows(leaf, rows) for leaf in plan]
    held = {leaf.path.split(".")[1 if leaf.path.startswith(f"{CACHE}.") else 0]: leaf.device_ids for leaf in leaves}
    batch = [_input(path, leaf, graph, held, mesh) for path, leaf in flatten_paths(inputs)[0]]
    return dataclasses.replace(plan, leaves=(*leaves, *batch))


def _positions_of(name: str, paths: list[str], layout: Layout) -> list[Positions]:
    """Return the different positions that rules give to a part: to its state, and to what others read from it."""
    positions: list[Positions] = []
    for path in paths or [join_parts((name, CACHE))]:  # a part without state and outputs is named all the same
        placements = (rule.placement for rule in layout if matches(rule.pattern, path))
        on = next((placement for placement in placements if isinstance(placement, On)), None)
        if on is not None and on.positions not in positions:
            positions.append(on.positions)
    return positions


def _rule_problems(graph: StepGraph, layout: Layout) -> Iterator[Problem]:
    for rule in layout:
        name = first_part(rule.pattern)
        if isinstance(rule.placement, On):
            if name == CACHE:
                name = first_part(".".join(pattern_parts(rule.pattern)[1:]) or "*")
            if name is not None and name not in graph.parts and not rule.optional:
                yield Problem(
                    "no such part", rule.pattern, f"the graph has no part {name!r}", did_you_mean(name, graph.parts)
                )
        elif _says_something(rule):
            what = f"{rule}: in mode placed a part is as a whole on its devices, and inputs are where they are read"
            yield Problem(
                "not a place", rule.pattern, what, "outlay.by_module({part: position}) alone, without this rule"
            )


def _says_something(rule: Rule) -> bool:
    return not (rule.optional or rule.placement == P() or isinstance(rule.placement, Replicate))


def _part_problems(
    graph: StepGraph, positions: Mapping[str, list[Positions]], state: Any, mesh: MeshInfo
) -> Iterator[Problem]:
    for name, groups in positions.items():
        if not groups:
            yield Problem("part without a device", name, "no rule places it", f'outlay.by_module({{..., "{name}": 0}})')
            continue
        if len(groups) > 1:
            what = f"its leaves are at positions {', '.join(map(str, groups))}: a part runs in one place"
            yield Problem("part in several places", name, what, f'outlay.by_module({{..., "{name}": {groups[0][0]}}})')
        missing = [position for position in groups[0] if not 0 <= position < mesh.num_devices]
        if missing:
            what = f"{mesh} has no position {missing[0]}, only 0 to {mesh.num_devices - 1}"
            yield Problem("no such device", name, what, "give a position that the mesh has")
        elif len(groups[0]) > 1 and not Rows.of(graph, (name,), state, "", len(groups[0])).num:
            what = f"it cannot be split by rows, and {len(groups[0])} devices are to share it"
            yield Problem("not by rows", name, what, f'one device: outlay.by_module({{..., "{name}": {groups[0][0]}}})')


def _by_rows(leaf: LeafPlan, rows: tuple[Rows, ...]) -> LeafPlan:
    """Complete the plan of a leaf on several devices with the rows that each of them holds."""
    mine = next((one for one in rows if one.has(leaf.path)), None)
    if mine is None:
        return leaf
    num, here = mine.num[leaf.path.partition(".")[0]], leaf.shape[0] // mine.num_devices
    reason = f"{leaf.reason}, {here} rows on each"
    if leaf.shape[0] > num:
        more = num_bytes(leaf.shape, leaf.dtype) // leaf.shape[0] * (leaf.shape[0] - num)
        reason += f"; {num} filled up to {leaf.shape[0]}, +{format_bytes(more)} in all"
    return dataclasses.replace(leaf, local_shape=(here, *leaf.shape[1:]), reason=reason)


def _input(path: str, leaf: Any, graph: StepGraph, held: Mapping[str, tuple[int, ...]], mesh: MeshInfo) -> LeafPlan:
    """Plan an input, on the devices of the parts that read it."""
    readers = [
        name
        for name, part in graph.parts.items()
        if any((source.part, source.port) == (INPUTS, path) for source in part.sources)
    ]
    devices = {device for name in readers for device in held.get(name, ())}
    return LeafPlan(
        path=under("batch", path),
        kind="batch",
        shape=tuple(leaf.shape),
        dtype=str(leaf.dtype),
        dims=((),) * len(leaf.shape),
        local_shape=tuple(leaf.shape),
        device_ids=tuple(device for device in mesh.device_ids if device in devices),
        rule="",
        reason=f"read by {', '.join(readers)}" if readers else "read by no part",
    )
