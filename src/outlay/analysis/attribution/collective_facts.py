"""The collectives of a compiled program: what each moves and who asked for it, and all of them added up."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from outlay.analysis.attribution.leaves import Leaf
from outlay.analysis.attribution.program_facts import CollectiveFacts, Phase
from outlay.analysis.attribution.provenance import Origin, origin_of
from outlay.analysis.cost.links import Place, collective_seconds, payload_bytes
from outlay.analysis.hlo.dataflow import leaf_parameter, outputs_reached
from outlay.analysis.hlo.groups import axes_of
from outlay.analysis.hlo.hlo_collectives import HloCollective, collectives_of
from outlay.analysis.hlo.hlo_module import HloModule, SourceLine
from outlay.core.paths import join_parts, split_path
from outlay.devices.info import MeshInfo
from outlay.devices.target import Target

_VIEWS = ("bitcast", "reshape", "copy", "convert")


def collective_facts(
    module: HloModule,
    leaves: Sequence[Leaf],
    mesh: MeshInfo | None,
    target: Target | None,
    places: Sequence[Place] = (),
) -> tuple[CollectiveFacts, ...]:
    """Every collective of a program.

    Args:
        module: the program.
        leaves: its parameters.
        mesh: the mesh it is partitioned over, if it is known.
        target: the hardware, if times are wanted.
        places: where the program's devices stand on it.
    """
    paths = {leaf.number: leaf for leaf in leaves}
    return tuple(
        _facts(module, found, paths, mesh, target, places) for found in collectives_of(module) if found.group_size > 1
    )


def _facts(
    module: HloModule,
    found: HloCollective,
    leaves: Mapping[int, Leaf],
    mesh: MeshInfo | None,
    target: Target | None,
    places: Sequence[Place],
) -> CollectiveFacts:
    one = found.instruction
    origin = origin_of(module, found.computation, one)
    moved = _leaves(module, found, leaves)
    sums = not moved and origin.phase == "backward" and found.kind in ("all-reduce", "reduce-scatter")
    gradients = _gradient_of(module, found, leaves) if sums else ()
    return CollectiveFacts(
        kind=found.kind,
        name=one.name,
        axes=axes_of(found.groups, mesh.axes) if mesh else (),
        group_size=found.group_size if found.kind != "collective-permute" else _ring_size(found, mesh),
        crosses_hosts=_crosses_hosts(found, mesh, places),
        dtype=found.dtype,
        operand_bytes=found.operand_bytes,
        bytes_moved=_bytes_moved(found),
        count=found.count,
        count_is_exact=found.count_is_exact,
        is_async=found.is_async,
        phase=origin.phase,
        module=origin.module,
        source=origin.source,
        leaves=moved,
        value="" if moved else _in_words(gradients, origin),
        seconds=None
        if target is None
        else collective_seconds(found.kind, payload_bytes(found), found.groups, target, places=places or None),
        gradients=tuple(gradients),
    )


def _bytes_moved(found: HloCollective) -> int:
    """What a device sends, by the ring algorithm."""
    n = found.group_size
    if found.kind in ("collective-permute", "collective-broadcast"):
        return found.operand_bytes
    if found.kind == "all-reduce":
        return 2 * found.operand_bytes * (n - 1) // n
    whole = found.result_bytes if found.kind == "all-gather" else found.operand_bytes
    return whole * (n - 1) // n


def _ring_size(found: HloCollective, mesh: MeshInfo | None) -> int:
    """Of a permutation the devices of its axes, as far as it follows any."""
    axes = axes_of(found.groups, mesh.axes) if mesh else ()
    return math.prod(mesh.axis_sizes[axis] for axis in axes) if mesh and axes else found.group_size


def _crosses_hosts(found: HloCollective, mesh: MeshInfo | None, places: Sequence[Place]) -> bool | None:
    hosts = [place.island for place in places] or (list(mesh.hosts) if mesh else [])
    if max((max(group) for group in found.groups if group), default=0) >= len(hosts):
        return None
    return any(len({hosts[position] for position in group}) > 1 for group in found.groups)


def _leaves(module: HloModule, found: HloCollective, leaves: Mapping[int, Leaf]) -> tuple[str, ...]:
    """The leaves that are moved, or whose parts are; none if anything else is moved along."""
    numbers = [
        leaf_parameter(module, found.computation, operand) for operand in dict.fromkeys(found.instruction.operands)
    ]
    paths = dict.fromkeys(leaves[number].path if number is not None and number in leaves else "" for number in numbers)
    return tuple(paths) if all(paths) else ()


def _in_words(gradients: Sequence[str], origin: Origin) -> str:
    """What is moved: gradients, where it is a parameter that they go into, or else the result of an operation."""
    if len(gradients) == 1:
        return f"gradient of {gradients[0]}"
    if gradients:
        return f"gradients of {len(gradients)} leaves: {_below(gradients)}"
    return f"result of {origin.primitive}" if origin.primitive else "a computed value"


def _below(paths: Sequence[str]) -> str:
    """The path that several have in common; else the first, which is the largest, and how many more."""
    parts = [split_path(path) for path in paths]
    common = [same[0] for same in itertools.takewhile(lambda names: len(set(names)) == 1, zip(*parts, strict=False))]
    return ".".join([join_parts(tuple(common)), "**"]) if common else f"{paths[0]} and {len(paths) - 1} more"


def _gradient_of(module: HloModule, found: HloCollective, leaves: Mapping[int, Leaf]) -> tuple[str, ...]:
    """The parameters whose new value is computed from what is moved, element by element, the largest first.

    Activations' gradients go into many parameters from one array; those name nothing. Gradients that were joined into
    one array go into all of theirs.
    """
    updated = {output: leaves[number] for output, number in module.input_output_alias if number in leaves}
    num = len(found.instruction.operands)
    gradients: dict[str, int] = {}
    for element, operand in enumerate(found.instruction.operands):
        reached = outputs_reached(module, found.computation, found.instruction.name, element if num > 1 else None)
        into = {
            updated[output,].path: updated[output,].num_bytes
            for output in reached
            if (output,) in updated and updated[output,].part in ("params", "")
        }
        if len(into) == 1 or _is_joined(module, found.computation, operand):
            gradients |= into
    return tuple(sorted(gradients, key=lambda path: -gradients[path]))


def _is_joined(module: HloModule, computation: str, value: str) -> bool:
    """Whether a value is several arrays, one after another."""
    one = module.computations[computation].instructions.get(value)
    if one is None:
        return False
    if one.opcode == "fusion":
        name = one.called("calls")
        inside = module.computations.get(name)
        root = inside.root if inside else None
        return root is not None and _is_joined(module, name, root.name)
    if one.opcode in _VIEWS:
        return _is_joined(module, computation, one.operands[0])
    return one.opcode == "concatenate"


@dataclass(frozen=True)
class Total:
    """Some collectives together.

    Attributes:
        num_collectives: how many stand in the program.
        num_runs: how often they run in a step.
        bytes_per_step: what a device sends for them.
        seconds: estimated for a step; None without a target.
    """

    num_collectives: int
    num_runs: int
    bytes_per_step: int
    seconds: float | None


@dataclass(frozen=True)
class Row:
    """Collectives that differ in nothing that a reader looks at, such as those of like layers.

    Attributes:
        kind: such as `all-gather`.
        axes: the mesh axes, as text.
        phase: the part of the step.
        module: the model's part.
        what: the leaf or value that is moved; numbers in paths of several are stars.
        source: the user's line.
        is_exact: whether the number of runs is known.
        total: of all of them.
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
    """Some collectives added up."""
    found = list(collectives)
    seconds = [one.seconds * one.count for one in found if one.seconds is not None]
    return Total(
        len(found),
        sum(one.count for one in found),
        sum(one.bytes_per_step for one in found),
        sum(seconds) if len(seconds) == len(found) else None,
    )


def totals(collectives: Sequence[CollectiveFacts], name: Callable[[CollectiveFacts], str]) -> dict[str, Total]:
    """Collectives added up by some name, most bytes first."""
    groups: dict[str, list[CollectiveFacts]] = {}
    for one in collectives:
        groups.setdefault(name(one), []).append(one)
    added = {key: total(members) for key, members in groups.items()}
    return dict(sorted(added.items(), key=lambda item: -item[1].bytes_per_step))


def rows(collectives: Sequence[CollectiveFacts]) -> tuple[Row, ...]:
    """The lines of a table of collectives, most bytes first."""
    groups: dict[tuple, list[CollectiveFacts]] = {}
    for one in collectives:
        module, what = starred(one.module), starred(one.leaf or one.value)
        groups.setdefault((one.kind, one.axes, one.group_size, one.phase, module, what, one.source), []).append(one)
    found = []
    for (kind, axes, group_size, phase, _, _, source), members in groups.items():
        first = members[0]
        alike = len(members) == 1
        module = first.module if alike else starred(first.module)
        what = first.leaf or first.value
        what = what if alike or all((one.leaf or one.value) == what for one in members) else starred(what)
        exact = all(one.count_is_exact for one in members)
        named = "+".join(axes) or f"{group_size} devices"
        found.append(Row(kind, named, phase, module, what, source, exact, total(members)))
    return tuple(sorted(found, key=lambda row: -row.total.bytes_per_step))


def starred(path: str) -> str:
    """A path with its numbers as stars, so that like layers read the same.

    >>> starred("params.layers.11.kernel"), starred("MLP.Dense_0")
    ('params.layers.*.kernel', 'MLP.Dense_*')
    """
    return re.sub(r"(?<=[._\[])\d+(?=$|[.\]\s,])", "*", path)
