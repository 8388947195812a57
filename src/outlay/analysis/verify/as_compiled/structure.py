"""The structure of a compiled program, which its sizes do not change: what it exchanges, calls, loops and computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from outlay.analysis.attribution.provenance import origin_of
from outlay.analysis.hlo.groups import axes_of
from outlay.analysis.hlo.hlo_collectives import HloCollective, collectives_of, is_collective
from outlay.analysis.hlo.hlo_module import HloModule, Instruction
from outlay.analysis.hlo.loops import runs_per_step
from outlay.analysis.hlo.opcodes import BARRIERS, KINDS, NAMES, both_halves
from outlay.core.one_line import OneLine
from outlay.core.quantities import counted, listed

Axes = tuple[tuple[str, int], ...]

# What only holds or moves values on one device differs with tiles and layouts, and computes nothing.
_MOVES = both_halves(KINDS["copies"]) | KINDS["makes"] | {"broadcast", "transpose", "reshape", "fusion"}
_SILENT = NAMES | BARRIERS | _MOVES
_MAX_NAMED = 4
_BEHIND_THE_LOOP = (
    "the small program exchanges once behind its loop what the full one does in each round, as compilers do with small "
    "arrays (more layers or features in the small one may help)"
)


@dataclass(frozen=True, order=True)
class Exchanged:
    """An array that devices exchange.

    Attributes:
        kind: the collective.
        axes: the mesh axes that it goes over, with the distance of a permutation; how many devices are in a group if
            these are no whole axes.
        dtype: HLO's name.
        phase: the part of the step.
        in_loop: whether a loop does it in each of its rounds.
    """

    kind: str
    axes: str
    dtype: str
    phase: str
    in_loop: bool

    def __str__(self) -> str:
        where = f"{self.phase}, in a loop" if self.in_loop else self.phase
        return f"{self.kind} of {self.dtype} over {self.axes} ({where})"


@dataclass(frozen=True)
class Collective:
    """A collective by what it does, whatever the sizes are.

    Attributes:
        kind: what it does.
        axes: as of `Exchanged`.
        dtype: HLO's name.
        in_loop: whether a loop does it in each of its rounds.
        num_arrays: how many arrays it exchanges.
        line: the user's line; empty if unknown, or if it exchanges several arrays.
    """

    kind: str
    axes: str
    dtype: str
    in_loop: bool
    num_arrays: int
    line: str


@dataclass(frozen=True)
class Structure:
    """What a compiled program does, whatever its sizes are.

    Attributes:
        exchanged: how many arrays are exchanged in each way; several may be joined to one collective.
        order: its collectives in the order of the text.
        calls: the calls of libraries and kernels, each by its target and what it is for.
        loops: what its loops are for, each as often as there are such loops.
        computed: the operations, each by what it does and what it is for.
    """

    exchanged: Counter[Exchanged]
    order: tuple[Collective, ...]
    calls: frozenset[tuple[str, str]]
    loops: Counter[str]
    computed: frozenset[tuple[str, str]]


def structure_of(module: HloModule, axes: Axes) -> Structure:
    """Return the structure of a compiled program.

    Args:
        module: the program.
        axes: name and size of each axis of its mesh, the slowest first.

    Examples:
        >>> from outlay.analysis.hlo.parse import parse_hlo
        >>> structure = structure_of(parse_hlo('''HloModule jit_f, num_partitions=2
        ...
        ... %add (x: f32[], y: f32[]) -> f32[] {
        ...   %x = f32[] parameter(0)
        ...   %y = f32[] parameter(1)
        ...   ROOT %z = f32[] add(%x, %y)
        ... }
        ...
        ... ENTRY %main (x: f32[4]) -> f32[4] {
        ...   %x = f32[4]{0} parameter(0)
        ...   ROOT %y = f32[4]{0} all-reduce(%x), replica_groups={{0,1}}, to_apply=%add
        ... }'''), (("data", 2),))
        >>> [str(one) for one in structure.exchanged]
        ['all-reduce of f32 over all (other)']
    """
    runs = runs_per_step(module)
    step = f"jit({module.name.removeprefix('jit_')})/"  # the smaller step may have another name
    exchanged: Counter[Exchanged] = Counter()
    order = []
    for one in collectives_of(module):
        origin = origin_of(module, one.computation, one.instruction)
        over = _over(one, axes)
        num = sum(_joined(module, one.computation, name) for name in one.instruction.operands) or 1
        in_loop = one.count > 1 or not one.count_is_exact
        exchanged[Exchanged(one.kind, over, one.dtype, origin.phase, in_loop)] += num
        line = str(origin.source or "") if num == 1 else ""
        order.append(Collective(one.kind, over, one.dtype, in_loop, num, line))
    calls, loops, computed = set(), Counter(), set()
    for computation, one in module.instructions():
        if one.opcode == "while" and computation.name in runs:
            loops[one.op_name.replace(step, "")] += 1
        elif one.opcode == "custom-call":
            target = one.attributes.get("custom_call_target", "").strip('"')
            calls.update((target, purpose) for purpose in _purposes(one, step))
        elif one.opcode not in _SILENT and one.op_name and not is_collective(_without_stage(one.opcode)):
            # Exchanges that were joined to one have one name left.
            computed.update((_without_stage(one.opcode), purpose) for purpose in _purposes(one, step))
    return Structure(exchanged, tuple(order), frozenset(calls), loops, frozenset(computed))


def _joined(module: HloModule, computation: str, name: str) -> int:
    """Return how many arrays an operand holds: compilers join some to one array before they exchange it."""
    here = module.computations[computation]
    one = here.instructions.get(name)
    while one is not None and one.opcode in ("bitcast", "copy") and one.operands:
        one = here.instructions.get(one.operands[0])
    if one is None:
        return 1
    fused = module.fused(one)
    root = one if fused is None else fused.root
    if root is not None and root.opcode == "concatenate":
        return len(root.operands)
    return len(one.shapes)


def _purposes(one: Instruction, step: str) -> list[str]:
    """Return what an operation is for: its scopes, several if operations were joined to it."""
    return one.op_name.replace(step, "").split(";")


def _without_stage(opcode: str) -> str:
    return opcode.removesuffix("-start").removesuffix("-done")


def _over(one: HloCollective, axes: Axes) -> str:
    names = axes_of(one.groups, axes, permutation=one.kind == "collective-permute" or None)
    if one.over_slices:
        return "slices"
    if not names:
        return f"groups of {one.group_size}" if one.groups else "all"
    if one.kind != "collective-permute":
        return "+".join(names)
    return "+".join(names) + f" by {listed(sorted(_distances(one.groups, axes)), _MAX_NAMED)}"


def _distances(pairs: Sequence[Sequence[int]], axes: Axes) -> set[int]:
    """Return how far a permutation sends along its axes: a ring has one distance, whatever its size is."""
    distances = set()
    for source, target in pairs:
        for _, size in reversed(axes):
            source, here = divmod(source, size)
            target, there = divmod(target, size)
            apart = (there - here) % size
            distances.add(apart if 2 * apart <= size else apart - size)
    return distances - {0} or {0}


@dataclass(frozen=True)
class StructureComparison(OneLine):
    """Whether two compiled programs have the same structure.

    Attributes:
        num_exchanged: how many arrays the big one exchanges.
        num_calls: how many calls of libraries it has.
        num_computed: how many operations, each counted once for what it is for.
        num_common: how many of these operations the small one has, too.
        differences: what is in one alone and bears on what is exchanged, called, looped or computed, in words.
        remarks: what differs and does not, in words.
        kinds: the collectives of which one program has more than the other.
    """

    num_exchanged: int
    num_calls: int
    num_computed: int
    num_common: int
    differences: tuple[str, ...]
    remarks: tuple[str, ...]
    kinds: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool:
        """Whether what the small program shows is true of the big one."""
        return not self.differences

    @property
    def in_words(self) -> str:
        """What was compared, in words."""
        calls = counted(self.num_calls, "kind of call", "kinds of call")
        return (
            f"of {counted(self.num_exchanged, 'exchanged array')}, {calls} and "
            f"{counted(self.num_computed, 'operation')}, {self.num_common:,} operations are in both"
        )


def compare_structures(full: Structure, small: Structure) -> StructureComparison:
    """Compare the structure of a program with that of a smaller one.

    Args:
        full: of the program.
        small: of the smaller one.
    """
    differences = [
        *_in_one_alone(full.exchanged, small.exchanged),
        *(f"{name}: {num} more in the full program" for name, num in _named(full.loops - small.loops, "loop")),
        *(f"{name}: {num} more in the small program" for name, num in _named(small.loops - full.loops, "loop")),
    ]
    purposes = {purpose for _, purpose in (*small.computed, *small.calls)}
    missing = sorted({purpose for _, purpose in (*full.computed, *full.calls)} - purposes)
    if missing:
        differences.append(
            f"{counted(len(missing), 'part')} of the step that the small program lacks: {listed(missing, _MAX_NAMED)}"
        )
    if targets := sorted({target for target, _ in full.calls} - {target for target, _ in small.calls}):
        differences.append(f"the full program alone calls {listed(targets, _MAX_NAMED)}")
    remarks = []
    if full.order != small.order and not differences:
        common = Counter(full.order) & Counter(small.order)
        remarks.append(
            f"{sum(common.values())} of {counted(len(full.order), 'collective')} are joined alike and of the same line"
        )
    return StructureComparison(
        sum(full.exchanged.values()),
        len(full.calls),
        len(full.computed),
        len(full.computed & small.computed),
        tuple(differences),
        tuple(remarks),
        tuple(sorted({one.kind for one in (*(full.exchanged - small.exchanged), *(small.exchanged - full.exchanged))})),
    )


def _in_one_alone(full: Counter[Exchanged], small: Counter[Exchanged]) -> list[str]:
    more = [f"{one}: {full[one]} in the full program, {small[one]} in the small one" for one in full - small]
    less = [f"{one}: {full[one]} in the full program, {small[one]} in the small one" for one in small - full]
    moved = [one for one in full - small if one.in_loop and not small[one] and small[replace(one, in_loop=False)]]
    hint = [f"{_BEHIND_THE_LOOP}: {listed(sorted({one.kind for one in moved}), _MAX_NAMED)}"] if moved else []
    return list(dict.fromkeys([*more, *less, *hint]))


def _named(loops: Counter[str], what: str) -> list[tuple[str, int]]:
    return [(f"{what} {name or 'without a name'}", num) for name, num in loops.items()]
