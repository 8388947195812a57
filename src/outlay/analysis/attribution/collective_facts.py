"""Find the collectives of a compiled program: what each moves, which line caused it, and totals."""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from outlay.analysis.attribution.leaves import Leaf
from outlay.analysis.attribution.program_facts import CollectiveFacts, Phase
from outlay.analysis.attribution.provenance import Origin, origin_of
from outlay.analysis.cost.lanes import TimedBlock, flattened
from outlay.analysis.cost.links import Groups, Location, collective_seconds, over_slices, payload_bytes
from outlay.analysis.hlo.dataflow import leaf_parameter, outputs_reached
from outlay.analysis.hlo.groups import axes_of
from outlay.analysis.hlo.hlo_collectives import CollectiveKind, HloCollective, collectives_of
from outlay.analysis.hlo.hlo_module import HloModule, SourceLine
from outlay.analysis.hlo.opcodes import RESHAPED
from outlay.core.paths import join_parts, split_path
from outlay.devices.mesh_info import MeshInfo
from outlay.devices.target import Target


def collective_facts(
    module: HloModule,
    leaves: Sequence[Leaf],
    mesh: MeshInfo | None,
    target: Target | None,
    locations: Sequence[Location] = (),
) -> tuple[CollectiveFacts, ...]:
    """Return every collective of a program.

    Args:
        module: the program.
        leaves: its parameters.
        mesh: the mesh that it is partitioned over, if known.
        target: the hardware, if times are wanted.
        locations: where the program's devices are on the target.
    """
    by_number = {leaf.number: leaf for leaf in leaves}

    @functools.cache  # layers exchange alike
    def seconds_of(kind: CollectiveKind, payload: int, groups: Groups) -> float | None:
        if target is None:
            return None
        return collective_seconds(kind, payload, groups, target, locations=locations or None)

    collectives = over_slices(collectives_of(module), module.num_devices, locations)
    # A collective over an axis of size 1 sends nothing, and stands in the program all the same.
    sending = [one for one in collectives if one.group_size > 1]
    return tuple(
        _facts(module, one, by_number, mesh, seconds_of(one.kind, payload_bytes(one), one.groups), locations)
        for one in sending
    )


def _facts(
    module: HloModule,
    collective: HloCollective,
    leaves: Mapping[int, Leaf],
    mesh: MeshInfo | None,
    seconds: float | None,
    locations: Sequence[Location],
) -> CollectiveFacts:
    origin = origin_of(module, collective.computation, collective.instruction)
    moved = _leaves(module, collective, leaves)
    # Only a sum over devices in the backward pass can be a gradient; to follow any other value would take time for
    # nothing.
    sums = not moved and origin.phase == "backward" and collective.kind in ("all-reduce", "reduce-scatter")
    gradients = _gradient_of(module, collective, leaves) if sums else ()
    return CollectiveFacts(
        kind=collective.kind,
        name=collective.instruction.name,
        axes=axes_of(collective.groups, mesh.axes) if mesh else (),
        group_size=collective.group_size if collective.kind != "collective-permute" else _ring_size(collective, mesh),
        crosses_hosts=_crosses_hosts(collective, mesh, locations),
        dtype=collective.dtype,
        operand_bytes=collective.operand_bytes,
        bytes_moved=_bytes_moved(collective),
        count=collective.count,
        count_is_exact=collective.count_is_exact,
        is_async=collective.is_async,
        phase=origin.phase,
        module=origin.module,
        source=origin.source,
        leaves=moved,
        value="" if moved else _in_words(gradients, origin),
        seconds=seconds,
        gradients=tuple(gradients),
    )


def _bytes_moved(collective: HloCollective) -> int:
    """Return the bytes that a device sends, by the ring algorithm."""
    n = collective.group_size
    if collective.kind in ("collective-permute", "collective-broadcast"):
        return collective.operand_bytes
    if collective.kind == "all-reduce":  # a reduce-scatter and an all-gather
        return 2 * collective.operand_bytes * (n - 1) // n
    whole = collective.result_bytes if collective.kind == "all-gather" else collective.operand_bytes
    return whole * (n - 1) // n


def _ring_size(collective: HloCollective, mesh: MeshInfo | None) -> int:
    """Return the number of devices along the axes of a permutation."""
    axes = axes_of(collective.groups, mesh.axes) if mesh else ()
    return math.prod(mesh.axis_sizes[axis] for axis in axes) if mesh and axes else collective.group_size


def _crosses_hosts(collective: HloCollective, mesh: MeshInfo | None, locations: Sequence[Location]) -> bool | None:
    hosts = [location.island for location in locations] or (list(mesh.hosts) if mesh else [])
    # A saved text, or misread groups, may name more devices than there are known hosts.
    if max((max(group) for group in collective.groups if group), default=0) >= len(hosts):
        return None
    return any(len({hosts[position] for position in group}) > 1 for group in collective.groups)


def _leaves(module: HloModule, collective: HloCollective, leaves: Mapping[int, Leaf]) -> tuple[str, ...]:
    """Return the leaves that are moved, in whole or in part; none if anything else is moved with them."""
    numbers = [
        leaf_parameter(module, collective.computation, operand)
        for operand in dict.fromkeys(collective.instruction.operands)
    ]
    paths = dict.fromkeys(leaves[number].path if number is not None and number in leaves else "" for number in numbers)
    return tuple(paths) if all(paths) else ()


def _in_words(gradients: Sequence[str], origin: Origin) -> str:
    """Describe what is moved: gradients, if a parameter is computed from them, else the result of an operation."""
    if len(gradients) == 1:
        return f"gradient of {gradients[0]}"
    if gradients:
        return f"gradients of {len(gradients)} leaves: {_below(gradients)}"
    return f"result of {origin.primitive}" if origin.primitive else "a computed value"


def _below(paths: Sequence[str]) -> str:
    """Return the path that all have in common; else the first, which is the largest, and the number of the others."""
    parts = [split_path(path) for path in paths]
    common = [same[0] for same in itertools.takewhile(lambda names: len(set(names)) == 1, zip(*parts, strict=False))]
    return ".".join([join_parts(tuple(common)), "**"]) if common else f"{paths[0]} and {len(paths) - 1} more"


def _gradient_of(module: HloModule, collective: HloCollective, leaves: Mapping[int, Leaf]) -> tuple[str, ...]:
    """Return the parameters whose new value is computed from what is moved, element by element, largest first.

    A gradient of activations goes into many parameters from one array, and so names none. Gradients that were joined
    into one array name all of their parameters.
    """
    updated = {output: leaves[number] for output, number in module.input_output_alias if number in leaves}
    num = len(collective.instruction.operands)
    gradients: dict[str, int] = {}
    for element, operand in enumerate(collective.instruction.operands):
        name = collective.instruction.name
        reached = outputs_reached(module, collective.computation, name, element if num > 1 else None)
        into = {
            updated[output,].path: updated[output,].num_bytes
            for output in reached
            if (output,) in updated and updated[output,].part not in ("optimizer", "batch")
        }
        if len(into) == 1 or _is_joined(module, collective.computation, operand):
            gradients |= into
    return tuple(sorted(gradients, key=lambda path: -gradients[path]))


def _is_joined(module: HloModule, computation: str, value: str) -> bool:
    """Return whether a value consists of several arrays, one after another."""
    one = module.computations[computation].instructions.get(value)
    if one is None:
        return False
    if inside := module.fused(one):
        return inside.root is not None and _is_joined(module, inside.name, inside.root.name)
    if one.opcode in RESHAPED:
        return _is_joined(module, computation, one.operands[0])
    return one.opcode == "concatenate"


@dataclass(frozen=True)
class Total:
    """The total of some collectives.

    Attributes:
        num_collectives: how many there are in the program.
        num_runs: how often they run in a step, together.
        bytes_per_step: what a device sends for them.
        seconds: estimated for a step; None without a target.
        waited: the part of `seconds` for which the device waits; None without a target.
    """

    num_collectives: int
    num_runs: int
    bytes_per_step: int
    seconds: float | None
    waited: float | None


@dataclass(frozen=True)
class Row:
    """Similar collectives, as of identical layers, as one row of a table.

    Attributes:
        kind: such as `all-gather`.
        axes: the mesh axes, as text.
        phase: the part of the step.
        module: the model's part.
        what: the leaf, leaves or value that is moved, such as `layers.{0..79}.kernel`.
        source: the user's line.
        is_exact: whether the number of runs is known.
        total: their total.
    """

    kind: str
    axes: str
    phase: Phase
    module: str
    what: str
    source: SourceLine | None
    is_exact: bool
    total: Total


def total(collectives: Iterable[CollectiveFacts]) -> Total:
    """Add up some collectives."""
    return _sum([_of_a_step(one) for one in collectives])


def _of_a_step(one: CollectiveFacts) -> Total:
    seconds, waited = (each and each * one.count for each in (one.seconds, one.waited))
    return Total(1, one.count, one.bytes_per_step, seconds, waited)


def totals(collectives: Sequence[CollectiveFacts], name: Callable[[CollectiveFacts], str]) -> dict[str, Total]:
    """Add up collectives by some name, most bytes first."""
    added = {key: total(members) for key, members in _grouped(collectives, name).items()}
    return dict(sorted(added.items(), key=lambda item: -item[1].bytes_per_step))


def _grouped(collectives: Iterable[CollectiveFacts], key: Callable[[CollectiveFacts], Any]) -> dict[Any, list[Any]]:
    groups: dict[Any, list[CollectiveFacts]] = {}
    for one in collectives:
        groups.setdefault(key(one), []).append(one)
    return groups


def like_names(totals: Mapping[str, Total]) -> list[tuple[str, Total, list[str]]]:
    """Merge totals whose names differ only in numbers, as of identical layers.

    Args:
        totals: totals by name.

    Returns:
        A name for all of them, the sum, and the names, most bytes first.
    """
    groups: dict[str, list[str]] = {}
    for name in totals:
        groups.setdefault(starred(name), []).append(name)
    added = [(_one_name(names), _sum([totals[name] for name in names]), names) for names in groups.values()]
    return sorted(added, key=lambda group: -group[1].bytes_per_step)


def _one_name(names: list[str]) -> str:
    if len(names) == 1:
        return names[0]
    from outlay.core.equal_layers import fold_numbers

    return fold_numbers(names)


def _sum(totals: Sequence[Total]) -> Total:
    return Total(
        sum(total.num_collectives for total in totals),
        sum(total.num_runs for total in totals),
        sum(total.bytes_per_step for total in totals),
        _sum_of_known([total.seconds for total in totals]),
        _sum_of_known([total.waited for total in totals]),
    )


def _sum_of_known(seconds: Sequence[float | None]) -> float | None:
    known = [each for each in seconds if each is not None]
    return sum(known) if len(known) == len(seconds) else None


def with_waiting(collectives: Sequence[CollectiveFacts], timed: TimedBlock) -> tuple[CollectiveFacts, ...]:
    """Add to collectives how long the device waits for them, from a step with the times of its operations."""
    waited: dict[str, float] = {}
    for one in flattened(timed.stretches):
        if one.lane == "links":
            waited[one.name] = waited.get(one.name, 0.0) + one.waited * one.runs
    return tuple(
        replace(one, waited=waited[one.name] / one.count) if one.name in waited and one.count else one
        for one in collectives
    )


def rows(collectives: Sequence[CollectiveFacts]) -> tuple[Row, ...]:
    """Return the rows of a table of collectives, most bytes first."""

    def alike(one: CollectiveFacts) -> tuple[Any, ...]:
        what = starred(one.leaf or one.value)
        return one.kind, one.axes, one.group_size, one.phase, starred(one.module), what, one.source

    lines = []
    for (kind, axes, group_size, phase, _, _, source), members in _grouped(collectives, alike).items():
        lines.append(
            Row(
                kind=kind,
                axes="+".join(axes) or f"{group_size} devices",
                phase=phase,
                module=_one_name(list(dict.fromkeys(one.module for one in members))),
                what=_one_name(list(dict.fromkeys(one.leaf or one.value for one in members))),
                source=source,
                is_exact=all(one.count_is_exact for one in members),
                total=total(members),
            )
        )
    return tuple(sorted(lines, key=lambda row: -row.total.bytes_per_step))


def starred(path: str) -> str:
    """Replace the numbers in a path by stars, so that identical layers get the same text.

    >>> starred("params.layers.11.kernel"), starred("MLP.Dense_0")
    ('params.layers.*.kernel', 'MLP.Dense_*')
    """
    # A number counts only where it ends a name: `fc1` and `fc2` are two layers, and each may be of its own kind.
    return re.sub(r"(?<=[._\[])\d+(?=$|[.\]\s,])", "*", path)
