"""Run a graph loop by rows: each device computes some rows of the parts that have rows, and all of the others."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from outlay.core.error_types import ProgramError
from outlay.core.paths import map_with_paths
from outlay.graph.graph_loop import GraphLoop, count_steps, results
from outlay.graph.rows import Rows
from outlay.graph.subgraph import Subgraph
from outlay.layout.layout import Layout
from outlay.layout.policies import SplitRows
from outlay.program.row_checks import check_rows


@dataclass(frozen=True, eq=False)  # so that it has a hash, which jax.jit asks for
class ByRows:
    """A graph loop split by rows over a mesh axis, which a program runs in its place.

    Attributes:
        graph_loop: what the user wrote.
        rows: which leaves are split.
        mesh: the mesh.
        user_init: what makes the state, of the sizes that the user knows.
        user_layout: the user's rules.
    """

    graph_loop: GraphLoop
    rows: Rows
    mesh: Mesh
    user_init: Callable[[Any], Any]
    user_layout: Layout

    @property
    def layout(self) -> Layout:
        """Return the user's rules with the leaves that have rows filled in."""
        numbers = tuple(
            (f"{name}.{pattern}", num)
            for name, num in self.rows.num.items()
            for pattern in self.rows.graph.parts[name].by_rows
        )
        return Layout(
            dataclasses.replace(rule, placement=dataclasses.replace(rule.placement, rows=numbers))
            if isinstance(rule.placement, SplitRows)
            else rule
            for rule in self.user_layout
        )

    def init(self, key: Any) -> Any:
        """Make on each device its rows of the state."""

        def make(key: Any) -> Any:
            return self.rows.init(self.user_init, key)

        specs = map_with_paths(lambda path, _: self.rows.spec(path), jax.eval_shape(self.user_init, key))
        return jax.shard_map(make, mesh=self.mesh, in_specs=P(), out_specs=specs, check_vma=False)(key)

    def __call__(self, state: Any, inputs: Any) -> tuple[Any, Any]:
        """Run all steps from a padded state."""
        num_steps, rows, recorded_outputs = count_steps(inputs), self.rows, self.graph_loop.recorded_outputs
        subgraph = Subgraph(rows.graph, tuple(rows.graph.parts), recorded_outputs, rows.num, rows.axis)

        specs = map_with_paths(lambda path, _: rows.spec(path), state)
        out_specs = specs, {one.key: rows.buffer_spec(one) for one in recorded_outputs}, P()

        def run(state: Any, inputs: Any) -> Any:
            return subgraph.run_alone(state, inputs, num_steps)

        mapped = jax.shard_map(run, mesh=self.mesh, in_specs=(specs, P()), out_specs=out_specs, check_vma=False)
        state, buffers, not_finite = mapped(state, inputs)
        return state, results(rows.crop_buffers(recorded_outputs, buffers), not_finite)


def by_rows(step: Any, init: Callable[[Any], Any], layout: Layout, mesh: Mesh, mode: str) -> ByRows | None:
    """Return what a program runs where its layout splits rows; None where it does not.

    Raises:
        ProgramError: rows are split, but the step is not a graph loop in mode manual; or it is one and no rows are
            split; or the rules put its parts on devices of their own.
    """
    axes = layout.row_axes
    if not (axes and mode == "manual" and isinstance(step, GraphLoop)):
        _check_rules(bool(axes), layout.names_devices, step, mode)
        return None
    if axes[0] not in mesh.shape:  # planning the layout will say so, with what to write
        return None
    names = tuple(step.graph.parts)
    rows = Rows.of(
        step.graph, names, jax.eval_shape(init, jax.eval_shape(lambda: jax.random.key(0))), axes[0], mesh.shape[axes[0]]
    )
    check_rows(rows)
    return ByRows(step, rows, mesh, init, layout)


def _check_rules(splits: bool, has_devices: bool, step: Any, mode: str) -> None:
    if has_devices and isinstance(step, GraphLoop):
        raise ProgramError(
            f"the layout puts parts of the graph on devices of their own, and mode {mode} runs all as one program\n"
            '  fix: mode="placed"'
        )
    if splits:
        raise ProgramError(
            "outlay.layout.by_rows lays out a graph loop in mode manual: only its graph says which leaves have rows\n"
            '  fix: outlay.program(outlay.graph.GraphLoop(graph), ..., layout=outlay.layout.by_rows(), mode="manual")'
        )
    if mode == "manual" and isinstance(step, GraphLoop):
        raise ProgramError(
            "a graph loop in mode manual is split by the rows of its parts, and no rule of the layout says so\n"
            '  fix: layout=outlay.layout.by_rows("rows"), or mode="auto" or mode="placed"'
        )
