"""The ways in which a layout's pipeline or context may run on a mesh: microbatches, repeats, exchanges. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

from outlay.core.paths import flatten_paths, split_path
from outlay.devices.mesh_spec import MeshSpec
from outlay.layout.layout import Layout
from outlay.layout.layout_options import name_with, split_name, with_options
from outlay.layout.pipelines import is_in_list

_PER_STAGE = (2, 4, 8)
"""Microbatches for each stage: with fewer most ticks are idle, and with more a microbatch is too small to pay."""

_REPEATS = (2, 3, 4)
"""How often microbatches may go round besides once: each time costs a transfer from the last stage to the first."""


def special_axes(layout: Layout) -> tuple[str, ...]:
    """Return the axes of a layout that carry activations between devices, and may do so inside hosts or across them.

    Those of stages, of tokens and of experts: what a tick, a hop or an expert waits for is known, and may be little.
    """
    experts = (axis for rule in layout if rule.source == EXPERTS for axis in rule.axes)
    return tuple(dict.fromkeys([*layout.stage_axes, *layout.context_axes, *experts]))


EXPERTS = "expert_parallel"
"""The source of the rules that split experts."""


def variants(name: str, layout: Layout, mesh: MeshSpec, num_layers: int) -> Iterator[tuple[str, Layout]]:
    """Yield a layout by the names of what may run: with other numbers of its pipeline, or exchanges of its context.

    Args:
        name: its name; one with options is taken as it is.
        layout: the layout.
        mesh: the mesh, resolved.
        num_layers: the layers of its pipeline, as `num_stacked` counts them.
    """
    if split_name(name)[1]:
        yield name, layout
        return
    own: Any = next((rule.placement for rule in layout if getattr(rule.placement, "stage_axis", "")), None)
    context: Any = next((rule.placement for rule in layout if getattr(rule.placement, "context_axis", "")), None)
    numbers: list[dict[str, Any]] = [{}]
    exchanges: list[dict[str, Any]] = [{}]
    if own is not None:
        numbers = list(_of_pipeline(own, mesh.axis_sizes.get(own.stage_axis, 1), num_layers))
    if context is not None and context.exchange is None:
        exchanges = [{"exchange": exchange} for exchange in ("ring", "gather", "all_to_all")]
    for of_pipeline, of_context in itertools.product(numbers, exchanges):
        options = {**of_pipeline, **of_context}
        yield name_with(name, options), with_options(layout, options, name)


def _of_pipeline(own: Any, stages: int, num_layers: int) -> Iterator[dict[str, Any]]:
    """Yield numbers of a pipeline that differ from its own; nothing for its own."""
    yield {}
    microbatches = dict.fromkeys([own.microbatches, *(stages * each for each in _PER_STAGE)])
    repeats = dict.fromkeys([own.repeats, 1, *(each for each in _REPEATS if num_layers % (stages * each) == 0)])
    for number, again in itertools.product(microbatches, repeats):
        if (number, again) != (own.microbatches, own.repeats) and (again == 1 or number >= stages):
            yield {"microbatches": number} if again == own.repeats else {"microbatches": number, "repeats": again}


def num_stacked(layout: Layout, state: Any) -> int:
    """Return how many layers the pipelines of a layout have: the common divisor of all stacks, or the length of a list.

    Args:
        layout: the layout.
        state: the state as shapes.
    """
    rules = [rule for rule in layout if getattr(rule.placement, "stage_axis", "")]
    leaves = [
        (path, leaf) for path, leaf in flatten_paths(state)[0] if any(rule.matches(path, "state") for rule in rules)
    ]
    listed = {next(part for part in split_path(path) if part.isdigit()) for path, _ in leaves if is_in_list(path)}
    stacks = [leaf.shape[0] for path, leaf in leaves if leaf.shape and not is_in_list(path)]
    return math.gcd(*stacks, len(listed))
