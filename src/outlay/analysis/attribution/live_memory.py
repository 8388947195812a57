"""Memory over the schedule of a step: what is alive at each point, and who owns it at the peak."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outlay.analysis.attribution.collective_facts import starred
from outlay.analysis.attribution.leaves import Leaf
from outlay.analysis.attribution.memory_facts import value_in_words
from outlay.analysis.attribution.provenance import origin_of
from outlay.analysis.hlo.hlo_collectives import collectives_of
from outlay.analysis.hlo.hlo_memory import constant_bytes
from outlay.analysis.hlo.hlo_module import Computation, HloModule, Instruction, SourceLine
from outlay.analysis.hlo.live_buffers import Buffer, LiveBuffers, live_buffers
from outlay.analysis.hlo.opcodes import RESHAPED
from outlay.core.one_line import OneLine
from outlay.render.report import fields_as_json

OWNERS = (
    *("parameters", "optimizer", "other state", "batch", "constants", "outputs"),
    *("activations", "backward pass", "collectives", "other values"),
)
"""Owners of memory: the state and the batch; constants and results; then the step's own values, those of the forward
pass, those of the backward pass, the results of collectives, and the rest."""

NUM_STRETCHES = 160
"""The number of stretches into which the schedule is divided; each is represented by its fullest point."""

_PARTS = {"params": "parameters", "optimizer": "optimizer", "batch": "batch"}
_PHASES = {"forward": "activations", "backward": "backward pass"}
_VIEWS = RESHAPED | {"broadcast", "transpose", "get-tuple-element"}
_LOOKED_AT = 300
"""The number of values whose lines are looked up, largest first: thousands of small ones would take seconds."""


@dataclass(frozen=True)
class HeldMemory:
    """Arrays of one owner and one kind at the peak.

    Attributes:
        owner: one of `OWNERS`.
        what: for values the operation, its module and phase; for other state its kind, such as `batch statistics`;
            empty for other arguments and for small values together.
        num_bytes: their bytes on one device.
        num_arrays: their number.
        source: the line that makes them; None if unknown.
    """

    owner: str
    what: str
    num_bytes: int
    num_arrays: int
    source: SourceLine | None


@dataclass(frozen=True)
class LiveMemory(OneLine):
    """The memory of a device while a step runs, in the order of its instructions.

    Attributes:
        num_points: the number of instructions in the schedule; a loop's body counts once.
        stretches: for each stretch the position of its fullest point, as a share of the schedule, and its bytes by
            owner.
        peak_at: the position of the peak, as a share of the schedule.
        peak_instruction: the instruction that runs there.
        peak: the bytes that are alive there.
        held: these bytes by owner and kind, the largest first; they sum to the peak.
    """

    num_points: int
    stretches: tuple[tuple[float, Mapping[str, int]], ...]
    peak_at: float
    peak_instruction: str
    peak: int
    held: tuple[HeldMemory, ...]

    def by_owner(self) -> dict[str, int]:
        """Return the bytes at the fullest point by owner, in the order of `OWNERS`."""
        return {owner: sum(one.num_bytes for one in self.held if one.owner == owner) for owner in OWNERS}

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {
            **fields_as_json(self),
            "stretches": [{"at": at, "bytes": dict(sizes)} for at, sizes in self.stretches],
            "by_owner": self.by_owner(),
            "held": [{**fields_as_json(one), "source": str(one.source or "")} for one in self.held],
        }


def live_memory(module: HloModule, leaves: Sequence[Leaf]) -> LiveMemory | None:
    """Follow the memory of one device through a step; None if the order of execution is unknown."""
    if not module.is_scheduled:
        return None
    live = live_buffers(module)
    if not live.points:
        return None
    owner_of = _owners(module, live, leaves)
    constants = constant_bytes(module)
    sizes = list(_sizes(live, owner_of, constants))
    peak_at = max(range(len(sizes)), key=lambda at: sum(sizes[at].values()))
    at_peak = [buffer for buffer in live.buffers if buffer.begin <= peak_at <= buffer.end]
    kinds = {leaf.number: leaf.part for leaf in leaves if leaf.part not in _PARTS}
    held = [*_held(module, at_peak, owner_of, kinds)]
    if constants:
        # They lie in the program, not in a buffer, and are there at every point.
        held.append(HeldMemory("constants", "arrays in the program's text", constants, 1, None))
    return LiveMemory(
        num_points=len(sizes),
        stretches=tuple(_fullest(sizes)),
        peak_at=peak_at / len(sizes),
        peak_instruction=live.points[peak_at][1].name,
        peak=sum(sizes[peak_at].values()),
        held=tuple(sorted(held, key=lambda one: -one.num_bytes)),
    )


def _owners(module: HloModule, live: LiveBuffers, leaves: Sequence[Leaf]) -> Callable[[Buffer], str]:
    exchanged = {one.instruction.name for one in collectives_of(module)}
    parts = {leaf.number: _PARTS.get(leaf.part, "other state") for leaf in leaves}
    values = [buffer for buffer in live.buffers if buffer.kind == "temporary"]
    largest = heapq.nlargest(_LOOKED_AT, values, key=lambda buffer: buffer.num_bytes)
    # By identity: a buffer is changed while the program is walked, so it cannot be a key.
    phases = {id(one): origin_of(module, one.computation, one.instruction).phase for one in largest}

    def owner(buffer: Buffer) -> str:
        if buffer.kind == "argument":
            return parts.get(buffer.instruction.number or 0, "other state")
        if buffer.kind == "output":
            return "outputs"
        if buffer.instruction.name in exchanged:
            return "collectives"
        return _PHASES.get(phases.get(id(buffer), ""), "other values")

    return owner


def _sizes(live: LiveBuffers, owner_of: Callable[[Buffer], str], constants: int) -> Iterator[dict[str, int]]:
    """Yield the bytes by owner that are alive at each point."""
    # Changes instead of sums: a buffer may live through the whole schedule, and there are as many points as buffers.
    changes: list[list[tuple[str, int]]] = [[] for _ in range(len(live.points) + 1)]
    for buffer in live.buffers:
        owner = owner_of(buffer)
        changes[buffer.begin].append((owner, buffer.num_bytes))
        changes[buffer.end + 1].append((owner, -buffer.num_bytes))
    alive = dict.fromkeys(OWNERS, 0) | {"constants": constants}
    for at in range(len(live.points)):
        for owner, change in changes[at]:
            alive[owner] += change
        yield dict(alive)


def _fullest(sizes: Sequence[dict[str, int]]) -> Iterator[tuple[float, Mapping[str, int]]]:
    """Yield the fullest point of each stretch of the schedule."""
    num = min(NUM_STRETCHES, len(sizes))
    for stretch in range(num):
        points = range(stretch * len(sizes) // num, (stretch + 1) * len(sizes) // num)
        fullest = max(points, key=lambda at: sum(sizes[at].values()))
        yield fullest / len(sizes), {owner: size for owner, size in sizes[fullest].items() if size}


def _held(
    module: HloModule, alive: Sequence[Buffer], owner_of: Callable[[Buffer], str], kinds: Mapping[int, str]
) -> Iterator[HeldMemory]:
    """Group what is alive at a point: arguments by owner and kind, values by operation and line."""
    largest = {id(one) for one in heapq.nlargest(_LOOKED_AT, alive, key=lambda buffer: buffer.num_bytes)}
    groups: dict[tuple[str, str, SourceLine | None], list[int]] = {}
    for buffer in alive:
        owner = owner_of(buffer)
        what, source = kinds.get(buffer.instruction.number or 0, "") if buffer.kind == "argument" else "", None
        if buffer.kind == "temporary" and id(buffer) in largest:
            words, source = value_in_words(module, *_made_by(module, buffer.computation, buffer.instruction))
            what = starred(words)
        groups.setdefault((owner, what, source), []).append(buffer.num_bytes)
    for (owner, what, source), sizes in groups.items():
        yield HeldMemory(owner, what, sum(sizes), len(sizes), source)


def _made_by(module: HloModule, computation: str, one: Instruction) -> tuple[str, Instruction]:
    """Return the instruction that makes a value; for an array that a loop fills, the one that makes its entries."""
    block = module.computations[computation]
    fused = module.fused(one)
    inside = fused or block
    root = _behind_views(inside, fused.root if fused else one)
    # What a scan stores turn by turn belongs to the line that computes it, not to the loop: so activations are told by
    # layer.
    if root is None or root.opcode != "dynamic-update-slice":
        return computation, one
    made = _behind_views(inside, inside.instructions.get(root.operands[1]))
    if made is not None and made.opcode == "parameter" and fused is not None and made.number is not None:
        inside, made = block, _behind_views(block, block.instructions.get(one.operands[made.number]))
    if made is not None and made.opcode == "get-tuple-element":
        made = _of_previous_iteration(inside, made)
    is_known = made is not None and made.opcode not in ("parameter", "constant", "while", "get-tuple-element")
    return (inside.name, made) if made is not None and is_known else (computation, one)


def _of_previous_iteration(block: Computation, one: Instruction) -> Instruction | None:
    """Return what makes a value that an iteration passes to the next; any other value as it is."""
    root, number = block.root, one.number
    if root is None or root.opcode != "tuple" or number is None or number >= len(root.operands):
        return one
    return _behind_views(block, block.instructions.get(root.operands[number]))


def _behind_views(block: Computation, one: Instruction | None) -> Instruction | None:
    """Skip instructions that only view or copy a value; stop at an element of a block's parameter."""
    while one is not None and one.opcode in _VIEWS and one.operands:
        behind = block.instructions.get(one.operands[0])
        if one.opcode == "get-tuple-element" and behind is not None and behind.opcode == "parameter":
            return one
        one = behind
    return one
