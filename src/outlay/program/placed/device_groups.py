"""Mode placed: the parts of a graph as programs of their own, each on its group of devices."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from outlay.arrays.shardings import ROWS, shardings
from outlay.core.error_types import ProgramError
from outlay.core.jax_compat import without_compilation_cache
from outlay.core.jax_tracing import fresh_traces
from outlay.devices.info import MeshInfo
from outlay.graph.rollout import Rollout, count_steps, results
from outlay.graph.rows import Rows
from outlay.graph.section import Section
from outlay.graph.step_graph import CACHE, INPUTS
from outlay.layout.check_rules import OUTPUTS
from outlay.layout.layout import Layout
from outlay.program.abstract import abstract_inputs, abstract_step, named
from outlay.program.compiler_options import Wanted, compiler_options
from outlay.program.diagnose import diagnose
from outlay.program.explicit import state_shapes
from outlay.program.placed.dispatch import Dispatch, joined, split_state
from outlay.program.placed.place import Place
from outlay.program.placed.planning import Positions, plan_placed, positions_of_parts


def _without_mesh(method: Any) -> Any:
    """A method that knows nothing of a mesh that the user has set: each place has devices of its own."""

    @functools.wraps(method)
    def run(*args: Any) -> Any:
        with jax.set_mesh(None):
            return method(*args)

    return run


class DeviceGroups:
    """How a program is executed in mode placed; see `Execution` for what it offers.

    Parts on the same devices are one program. In each dispatch every program runs the same number of steps, as many as
    what it reads from other devices is old, and what others read of it is sent to their devices, and nowhere else.
    Nothing is waited for: each runs on while others still compute what it does not need yet.
    """

    on_pieces = False
    steps_in_mesh = True

    @_without_mesh
    def __init__(
        self, step: Any, init: Callable[[Any], Any], inputs: Any, layout: Layout, mesh: Mesh, options: Wanted
    ) -> None:
        _refuse(step, mesh, options)
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
        self.places = tuple(
            self._place(tuple(names), tuple(mesh.devices.flat[i] for i in at), split.get(at), num_steps)
            for at, names in together.items()
        )
        self.plan = plan_placed(step.graph, layout, self.state_shapes, self.batch_shapes, info, self.rows)
        self.num_steps_at_once = min(num_steps, _least_latency(step, self.places) or num_steps)
        self._num_steps = num_steps
        self._makers = [place.init(init) for place in self.places]

    def check_key(self, key: Any) -> None:
        """Any kind of key will do: what is drawn of it is compared nowhere."""

    @_without_mesh
    def init(self, key: Any) -> Any:
        """Make the state: each part's on its devices, and nothing of it elsewhere."""
        made = [make(jax.device_put(key, place.whole)) for make, place in zip(self._makers, self.places, strict=True)]
        caches = [state.pop(CACHE) for state in made]
        return joined(made, caches)

    @_without_mesh
    def lower(self) -> tuple[jax.stages.Lowered, ...]:
        """The steps of each dispatch lowered, one for each place."""
        with fresh_traces():
            return tuple(place.steps(self.num_steps_at_once) for place in self.places)

    @_without_mesh
    def compile(self, lowered: Sequence[jax.stages.Lowered]) -> tuple[jax.stages.Compiled, ...]:
        """The same compiled; what begins and ends a call is too."""
        with without_compilation_cache(self._mesh.devices.flat[0]):
            self._ends  # noqa: B018  here, since what follows is timed
            return tuple(one.compile() for one in lowered)

    @_without_mesh
    def runner(self, compiled: Sequence[jax.stages.Compiled]) -> Callable[[Any, Any], tuple[Any, Any]]:
        """What sends off all steps, dispatch by dispatch."""
        whole, rest = divmod(self._num_steps, self.num_steps_at_once)
        programs: list[tuple[int, Sequence[Any]]] = [(whole, compiled)]
        if rest:
            programs.append((1, [place.steps(rest).compile() for place in self.places]))
        return functools.partial(self._run, Dispatch(self.places, programs))

    @functools.cached_property
    @_without_mesh
    def _ends(self) -> list[tuple[Any, Any]]:
        return [place.ends() for place in self.places]

    @_without_mesh
    def _run(self, dispatch: Dispatch, state: Any, batch: Any) -> tuple[Any, Any]:
        if jax.tree.structure((state, batch)) != self._structure:
            problem = diagnose(state, batch, (self.state_shapes, self.batch_shapes), self.plan, self._mesh)
            assert problem is not None
            raise problem
        inputs = [
            {name: jax.device_put(batch[name], place.whole) for name in place.section.inputs} for place in self.places
        ]
        if not all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(state)):
            state = jax.device_put(state, shardings(self.plan, self.state_shapes, self._mesh))
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

    def context(self) -> contextlib.AbstractContextManager[Any]:
        """The mesh, whose axes a part may name."""
        return jax.set_mesh(self._mesh)

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


def _refuse(step: Any, mesh: Mesh, options: Wanted) -> None:
    if options not in ("preset", "none"):
        raise ProgramError(
            "in mode placed there are many programs, each on one device, and compiler options are for one"
            "\n  fix: XLA_FLAGS, or leave them out"
        )
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
