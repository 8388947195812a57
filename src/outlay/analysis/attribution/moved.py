"""The collectives of a compiled program, each with what it moves and who asked for it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from outlay.analysis.attribution.leaves import Leaf
from outlay.analysis.attribution.program_facts import CollectiveFacts
from outlay.analysis.attribution.who_asked import Origin, origin_of
from outlay.analysis.cost.links import collective_seconds, payload_bytes
from outlay.analysis.cost.places import Place
from outlay.analysis.hlo.axes import axes_of
from outlay.analysis.hlo.collective import HloCollective
from outlay.analysis.hlo.find_collectives import collectives_of
from outlay.analysis.hlo.hlo_module import HloModule
from outlay.analysis.hlo.reach import outputs_reached
from outlay.analysis.hlo.trace import leaf_parameter
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
    traced = [
        leaf_parameter(module, found.computation, operand) for operand in dict.fromkeys(found.instruction.operands)
    ]
    paths = dict.fromkeys(leaves[one.parameter].path if one and one.parameter in leaves else "" for one in traced)
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
