"""A rollout whose parts are programs of their own, each on its devices: mode placed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.sharding import Mesh

from outlay.arrays.shardings import ROWS, shardings
from outlay.core.error_types import ProgramError
from outlay.core.fresh_traces import fresh_traces
from outlay.core.jax_compat import is_tracing, without_compilation_cache
from outlay.devices.info import MeshInfo
from outlay.devices.made import refuse_to_run
from outlay.graph.rollout import Rollout, count_steps, results
from outlay.graph.rows import Rows
from outlay.graph.section import Section
from outlay.graph.step_graph import CACHE, INPUTS
from outlay.layout.check_rules import OUTPUTS
from outlay.layout.layout import Layout
from outlay.program.abstract import abstract_inputs, abstract_step, as_key, named, refuse_other_arguments
from outlay.program.diagnose import check_outputs, diagnose, under_trace
from outlay.program.explicit import state_shapes
from outlay.program.modes import check_mode
from outlay.program.placed.dispatch import Dispatch, joined, split_state
from outlay.program.placed.place import Place
from outlay.program.placed.planning import Positions, plan_placed, positions_of_parts
from outlay.program.program import Program


def _without_mesh(method: Any) -> Any:
    """A method that knows nothing of a mesh that the user has set: each place has devices of its own."""

    @functools.wraps(method)
    def run(*args: Any) -> Any:
        with jax.set_mesh(None):
            return method(*args)

    return run


class PlacedProgram(Program):
    """A rollout laid out part by part; make one with `outlay.program(..., mode="placed")`.

    Parts on the same devices are one program. In each dispatch every program runs the same number of steps, as many as
    what it reads from other devices is old, and what others read of it is sent to their devices, and nowhere else.
    Nothing is waited for: each runs on while others still compute what it does not need yet.

    Attributes:
        step, mesh, layout, mode, plan, state_shapes, batch_shapes: as of any program.
        places: the parts that share a place, and their devices.
        num_steps_at_once: how many steps a dispatch runs.
    """

    @_without_mesh
    def __init__(self, step: Rollout, init: Callable[[Any], Any], inputs: Any, layout: Layout, mesh: Mesh) -> None:
        refuse_other_arguments(step, init, mesh)
        check_mode("placed", mesh)
        _refuse(step, mesh)
        self.step, self.mesh, self.layout, self.mode = step, mesh, layout, "placed"
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
        self.state_shapes = jax.eval_shape(self.pad, user_shapes)
        self.places = tuple(
            self._place(tuple(names), tuple(mesh.devices.flat[i] for i in at), split.get(at), num_steps)
            for at, names in together.items()
        )
        self.plan = plan_placed(step.graph, layout, self.state_shapes, self.batch_shapes, info, self.rows)
        self.num_steps_at_once = min(num_steps, _least_latency(step, self.places) or num_steps)
        self._num_steps = num_steps
        self._makers = [place.init(init) for place in self.places]
        self._run = self._first_run
        self._is_agreed = True

    @_without_mesh
    def init(self, key: Any) -> Any:
        """Make the state: each part's on its devices, and nothing of it elsewhere.

        Args:
            key: the PRNG key that the init function takes.

        Raises:
            ProgramError: the mesh is of compile-only devices.
        """
        refuse_to_run(self.mesh, "a state cannot be made")
        if is_tracing():
            raise under_trace("program.init")
        key = as_key(key)
        self.refuse_too_large()
        made = [make(jax.device_put(key, place.whole)) for make, place in zip(self._makers, self.places, strict=True)]
        caches = [state.pop(CACHE) for state in made]
        return joined(made, caches)

    # A dictionary of what other programs have one of: whoever reads them asks for the mode first.
    @functools.cached_property
    @_without_mesh
    def lowered(self) -> Mapping[str, jax.stages.Lowered]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The steps of each dispatch lowered, by the names of the parts, joined by `+` where they share a place."""
        with fresh_traces():
            return {"+".join(place.names): place.steps(self.num_steps_at_once) for place in self.places}

    @functools.cached_property
    @_without_mesh
    def compiled(self) -> Mapping[str, jax.stages.Compiled]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The same compiled: exactly what runs, with what begins and ends a call."""
        with without_compilation_cache(self.mesh.devices.flat[0]):
            self._ends  # noqa: B018  here, since what follows is timed
            return {name: lowered.compile() for name, lowered in self.lowered.items()}

    @functools.cached_property
    @_without_mesh
    def _dispatch(self) -> Dispatch:
        whole, rest = divmod(self._num_steps, self.num_steps_at_once)
        programs = [(whole, list(self.compiled.values()))]
        if rest:
            programs.append((1, [place.steps(rest).compile() for place in self.places]))
        return Dispatch(self.places, programs)

    @functools.cached_property
    @_without_mesh
    def _ends(self) -> list[tuple[Any, Any]]:
        return [place.ends() for place in self.places]

    def _first_run(self, state: Any, batch: Any) -> tuple[Any, Any]:
        """Run, and check once that the state came back where the plan says; then step aside."""
        refuse_to_run(self.mesh, "a step cannot run")
        new_state, outputs = self._run_all(state, batch)
        check_outputs(new_state, self.plan, self.mesh)
        self._run = self._run_all
        return new_state, outputs

    @_without_mesh
    def _run_all(self, state: Any, batch: Any) -> tuple[Any, Any]:
        if jax.tree.structure((state, batch)) != self._structure:
            problem = diagnose(state, batch, (self.state_shapes, self.batch_shapes), self.plan, self.mesh)
            assert problem is not None
            raise problem
        dispatch = self._dispatch
        inputs = [
            {name: jax.device_put(batch[name], place.whole) for name in place.section.inputs} for place in self.places
        ]
        if not all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(state)):
            state = jax.device_put(state, shardings(self.plan, self.state_shapes, self.mesh))
        own, caches = split_state(state, self.places)
        rest = [
            begin({**mine, "cache": cache}) for (begin, _), mine, cache in zip(self._ends, own, caches, strict=True)
        ]
        dispatch(own, rest, caches, inputs)
        kept, not_finite = {}, {}
        for (_, end), mine, left in zip(self._ends, own, rest, strict=True):
            these, first = end(mine, left)
            kept |= these
            not_finite |= first
        return joined(own, caches), results({one.key: kept[one.key] for one in self.step.kept}, not_finite)

    @functools.cached_property
    def _structure(self) -> Any:
        return jax.tree.structure((self.state_shapes, self.batch_shapes))

    def _place(self, names: tuple[str, ...], devices: tuple[Any, ...], rows: Rows | None, num_steps: int) -> Place:
        graph = self.step.graph
        kept = tuple(one for one in self.step.kept if one.part in names)
        section = Section(graph, names, kept, rows.num if rows else {}, ROWS)
        inputs = {name: self.batch_shapes[name] for name in section.inputs}
        return Place(section, devices, rows, self.state_shapes, inputs, num_steps)


def _least_latency(step: Rollout, places: tuple[Place, ...]) -> int | None:
    """The least latency of what crosses from one place to another; None where nothing does."""
    home = {name: place for place in places for name in place.names}
    return min(
        (
            source.latency
            for name, part in step.graph.parts.items()
            for sources in part.reads.values()
            for source in sources
            if source.part != INPUTS and home[source.part] is not home[name]
        ),
        default=None,
    )


def _refuse(step: Any, mesh: Mesh) -> None:
    if not isinstance(step, Rollout):
        raise ProgramError(
            f"mode placed runs a graph of parts, and {named(step)} is none\n"
            "  fix: outlay.graph.Rollout(graph), where graph is a StepGraph; or mode auto or manual"
        )
    processes = {device.process_index for device in mesh.devices.flat}
    if len(processes) > 1:
        raise ProgramError(
            f"mode placed sends off the steps of all parts from one process, and this mesh is of {len(processes)}\n"
            '  fix: the devices of one process, or outlay.by_rows in mode="manual", which runs in any number of them'
        )
