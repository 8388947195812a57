"""Plan a graph whose parts are on groups of devices: where each part, what others read of it, and each input is."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from jax.sharding import PartitionSpec as P

from outlay.core.array_leaves import num_bytes
from outlay.core.error_types import LayoutError, Problem
from outlay.core.paths import first_part, flatten_paths, join_parts, matches, pattern_parts, split_path, under
from outlay.core.quantities import counted, format_bytes
from outlay.core.suggest import did_you_mean
from outlay.devices.mesh_info import MeshInfo
from outlay.graph.rows import Rows
from outlay.graph.step_graph import CACHE, INPUTS, StepGraph
from outlay.layout.layout import Layout
from outlay.layout.leaf_plan import LeafPlan
from outlay.layout.placement import On, Replicate
from outlay.layout.plan import Plan
from outlay.layout.rule import Rule

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
            yield Problem(
                "part split over device groups", name, what, f'outlay.by_module({{..., "{name}": {groups[0][0]}}})'
            )
        missing = [position for position in groups[0] if not 0 <= position < mesh.num_devices]
        if missing:
            what = f"{mesh} has no position {missing[0]}, only 0 to {mesh.num_devices - 1}"
            yield Problem("no such device", name, what, "give a position that the mesh has")
        elif len(groups[0]) > 1 and not Rows.of(graph, (name,), state, "", len(groups[0])).num:
            what = f"it cannot be split by rows, and {len(groups[0])} devices are to share it"
            yield Problem("not by rows", name, what, f'one device: outlay.by_module({{..., "{name}": {groups[0][0]}}})')


def _by_rows(leaf: LeafPlan, rows: tuple[Rows, ...]) -> LeafPlan:
    """Complete the plan of a leaf on several devices with the rows that each of them holds."""
    rows_of_part = next((one for one in rows if one.has(leaf.path)), None)
    if rows_of_part is None:
        return leaf
    num, here = rows_of_part.num[leaf.path.partition(".")[0]], leaf.shape[0] // rows_of_part.num_devices
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
