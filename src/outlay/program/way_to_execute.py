"""Choose how a program is executed: as one step, as the parts of a graph, or as the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax.sharding import Mesh

from outlay.layout.layout import Layout
from outlay.program.compiler_options import RequestedOptions
from outlay.program.execution import Execution
from outlay.program.modes import Mode, Step
from outlay.program.one_step import OneStep
from outlay.program.program_arguments import is_graph_loop, no_stages


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
    """Return what executes a program; for the arguments see `outlay.program`.

    Raises:
        ProgramError: a schedule is given, and no stages could follow it; or the step, the layout and the mesh do not
            fit the mode.
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
