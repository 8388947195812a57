"""The schedule of a compiled program as plain data: everything that determines its time on a target, and nothing else.

Compiling takes minutes and pricing milliseconds, so they are separate: `schedule_of` reads a compiled program once, and
`outlay.analysis.cost.price.price(schedule, constants=...)` prices the result any number of times, also from JSON:

    schedule = outlay.explain(program).schedule
    path.write_text(json.dumps(schedule.to_dict()))
    estimate = price(Schedule.from_dict(json.loads(path.read_text())), constants=fitted)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from outlay.analysis.cost.links import Location, locations_of, over_slices, payload_bytes
from outlay.analysis.hlo.groups import axes_of
from outlay.analysis.hlo.hlo_collectives import (
    CollectiveKind,
    HloCollective,
    collectives_of,
    ends_collective,
    fused_collectives,
    rendezvous,
)
from outlay.analysis.hlo.hlo_memory import host_copy
from outlay.analysis.hlo.hlo_module import Computation, HloModule, Instruction, total_bytes
from outlay.analysis.hlo.loops import trip_count
from outlay.analysis.work.compiled import CompiledWork, Operation
from outlay.analysis.work.products import NO_KERNELS, custom_call_target
from outlay.core.one_line import OneLine
from outlay.devices.mesh_info import MeshInfo
from outlay.devices.target import Target

EventKind = Literal[
    "work",
    "exchange",
    "start",
    "wait",
    "copy",
    "copy-start",
    "copy-wait",
    "fetch-start",
    "fetch-wait",
    "loop",
    "branch",
    "call",
]


@dataclass(frozen=True)
class Event(OneLine):
    """An event in a device's schedule.

    Attributes:
        kind: `work` computes; `exchange` is a synchronous collective, `start` and `wait` delimit an asynchronous one;
            `copy`, `copy-start` and `copy-wait` are the same between host and device, `fetch-start` and `fetch-wait`
            between memory and chip on TPUs; `loop` runs the blocks of `calls` `runs` times, `branch` runs one of them,
            `call` all of them.
        name: the instruction.
        number: the index of the collective or copy that it starts or waits for.
        flops: FLOPs of its products.
        dtype: the dtype of the products, as targets name it.
        num_bytes: bytes read and written in memory, or copied.
        across_rows: the part of them that is read across rows, as (bytes, pitch).
        kernel: the function of a custom call; empty otherwise.
        calls: the names of the called blocks.
        runs: the number of iterations of a loop.
        is_counted: whether the program states the number of iterations of a loop; if not, `runs` is 1.
    """

    kind: EventKind
    name: str
    number: int = -1
    flops: float = 0.0
    dtype: str = ""
    num_bytes: int = 0
    across_rows: tuple[tuple[int, int], ...] = ()
    kernel: str = ""
    calls: tuple[str, ...] = ()
    runs: int = 1
    is_counted: bool = True


@dataclass(frozen=True)
class Exchange(OneLine):
    """A collective.

    Attributes:
        kind: the kind, such as `all-gather`.
        payload_bytes: bytes gathered, reduced or exchanged on one device.
        groups: the index of its groups in the schedule.
        axes: the mesh axes, if known.
        runs: runs per step.
        is_exact: whether `runs` is certain.
        is_async: whether the device may compute meanwhile.
    """

    kind: CollectiveKind
    payload_bytes: int
    groups: int
    axes: tuple[str, ...]
    runs: int
    is_exact: bool
    is_async: bool


@dataclass(frozen=True)
class Schedule(OneLine):
    """The work of one device in a step, in order; returned by `schedule_of`.

    Attributes:
        target: the hardware that the program was compiled for, as text; empty if unknown.
        num_devices: the number of devices of the program.
        entry: the block that runs first.
        blocks: the events of each block (the entry, a loop body, a branch) by name.
        exchanges: the collectives, to which events refer by number.
        groups: the groups of devices, each set of groups once.
        locations: the locations of the program's devices.
        unknown: what could not be counted, in words.
    """

    target: str
    num_devices: int
    entry: str
    blocks: Mapping[str, tuple[Event, ...]]
    exchanges: tuple[Exchange, ...]
    groups: tuple[tuple[tuple[int, ...], ...], ...]
    locations: tuple[Location, ...] = ()
    unknown: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data; events omit default values."""
        return {
            "target": self.target,
            "num_devices": self.num_devices,
            "entry": self.entry,
            "blocks": {name: [_short(event) for event in events] for name, events in self.blocks.items()},
            "exchanges": [dataclasses.asdict(one) for one in self.exchanges],
            "groups": self.groups,
            "places": [[location.island, *location.coords] for location in self.locations],
            "unknown": self.unknown,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Schedule:
        """Read the result of `to_dict`."""
        return cls(
            data["target"],
            data["num_devices"],
            data["entry"],
            {name: tuple(Event(**_tuples(one)) for one in events) for name, events in data["blocks"].items()},
            tuple(Exchange(**_tuples(one)) for one in data["exchanges"]),
            tuple(tuple(map(tuple, groups)) for groups in data["groups"]),
            tuple(Location(island, tuple(coords)) for island, *coords in data["places"]),
            tuple(data["unknown"]),
        )


def _short(event: Event) -> dict[str, Any]:
    return {
        field.name: value
        for field in dataclasses.fields(event)
        if (value := getattr(event, field.name)) != field.default
    }


def _tuples(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Turn the lists of JSON back into tuples."""
    return {
        name: tuple(tuple(one) if isinstance(one, list) else one for one in value) if isinstance(value, list) else value
        for name, value in fields.items()
    }


def schedule_of(
    module: HloModule, work: CompiledWork, target: Target | None = None, mesh: MeshInfo | None = None
) -> Schedule:
    """Read the schedule of a compiled program.

    Args:
        module: the scheduled program.
        work: the work of its instructions.
        target: the hardware.
        mesh: the mesh that it is partitioned over, which locates its devices and names the axes of collectives.
    """
    num_devices = module.num_devices * (target.num_slices if target else 1)  # of several slices it is that of one
    locations = locations_of(target, mesh) if target and target.num_devices == num_devices else ()
    collectives = over_slices(collectives_of(module), module.num_devices, locations)
    groups = {groups: number for number, groups in enumerate(dict.fromkeys(one.groups for one in collectives))}
    reading = _Reading(module, work, collectives)
    return Schedule(
        target=str(target) if target else "",
        num_devices=num_devices if locations else module.num_devices,
        entry=module.entry,
        blocks=dict(reading.blocks()),
        exchanges=tuple(_exchange(one, groups[one.groups], mesh) for one in collectives),
        groups=tuple(groups),
        locations=locations,
        unknown=work.unknown,
    )


def _exchange(one: HloCollective, groups: int, mesh: MeshInfo | None) -> Exchange:
    axes = axes_of(one.groups, mesh.axes, permutation=one.kind == "collective-permute") if mesh else ()
    return Exchange(one.kind, payload_bytes(one), groups, axes, one.count, one.count_is_exact, one.is_async)


class _Reading:
    """Reader of the blocks that the entry reaches."""

    def __init__(self, module: HloModule, work: CompiledWork, collectives: tuple[HloCollective, ...]) -> None:
        self._module = module
        self._operations = {operation.name: operation for operation in work.operations}
        self._collectives = collectives
        self._numbers = {(one.computation, one.instruction.name): i for i, one in enumerate(collectives)}
        self._sent = {rendezvous(one.instruction): i for i, one in enumerate(collectives) if one.over_slices}
        self._num_copies = 0

    def blocks(self) -> Iterator[tuple[str, tuple[Event, ...]]]:
        """Read every block and its events."""
        pending, seen = [self._module.entry], set()
        while pending:
            name = pending.pop()
            if name in seen or name not in self._module.computations:
                continue
            seen.add(name)
            events = tuple(self._events(self._module.computations[name]))
            yield name, events
            pending += [called for event in events for called in event.calls]

    def _events(self, block: Computation) -> Iterator[Event]:
        began: dict[
            str, tuple[EventKind, int]
        ] = {}  # transfers in flight, by the instruction whose result a consumer waits for
        for one in block.instructions.values():
            for kind, number in self._waited(one, block, began):
                yield Event(kind, one.name, number)
            for number in self._exchanged(one, block):
                is_async = self._collectives[number].is_async
                if is_async and one.opcode != "send":
                    began[one.name] = ("wait", number)
                yield Event("start" if is_async else "exchange", one.name, number)
            # Between slices the send was listed as the collective, but what the program waits for is the recv.
            if one.opcode == "recv" and rendezvous(one) in self._sent:
                began[one.name] = ("wait", self._sent[rendezvous(one)])
            elif one.opcode == "while":
                calls = (one.called("body"), one.called("condition"))
                trips = trip_count(self._module, block.name, one)
                runs = 1 if trips is None else trips
                yield Event("loop", one.name, calls=calls, runs=runs, is_counted=trips is not None)
            elif one.opcode in ("call", "conditional"):
                yield Event("branch" if one.opcode == "conditional" else "call", one.name, calls=one.calls)
            elif one.opcode == "async-start" and one.name not in began:
                yield Event("call", one.name, calls=one.calls)
            elif copied := host_copy(one, block):
                self._num_copies += 1
                is_async = one.opcode.endswith("-start")
                if is_async:
                    began[one.name] = ("copy-wait", self._num_copies)
                kind = "copy-start" if is_async else "copy"
                yield Event(kind, one.name, self._num_copies, num_bytes=copied.num_bytes)
            elif one.opcode == "copy-start":
                self._num_copies += 1
                began[one.name] = ("fetch-wait", self._num_copies)
                yield Event("fetch-start", one.name, self._num_copies, num_bytes=total_bytes(one.shapes[:1]))
            elif one.name in self._operations:
                yield _work(self._operations[one.name], one)

    def _exchanged(self, one: Instruction, block: Computation) -> Iterator[int]:
        """List the collectives that an instruction runs: itself, in a fusion, or in the computation that it starts."""
        if (block.name, one.name) in self._numbers:
            yield self._numbers[block.name, one.name]
        elif one.opcode == "fusion":
            for fused in fused_collectives(self._module, one):
                yield self._numbers[fused.computation.name, fused.instruction.name]
        elif one.opcode == "async-start":
            inside = self._module.computations.get(next(iter(one.calls), ""))
            if inside is not None:
                keys = ((inside.name, name) for name in inside.instructions)
                yield from (self._numbers[key] for key in keys if key in self._numbers)

    def _waited(
        self, one: Instruction, block: Computation, began: dict[str, tuple[EventKind, int]]
    ) -> Iterator[tuple[EventKind, int]]:
        """Find the asynchronous start that an instruction waits for, by following its operands."""
        is_fused = one.opcode == "fusion" and ends_collective(self._module, one)
        if one.opcode == "send-done" or not (one.opcode.endswith("-done") or is_fused):
            return  # the device does not wait until a send has left, only for the matching recv
        pending, seen = list(one.operands), set()
        while pending:  # breadth first: starts further away were waited for earlier
            name = pending.pop(0)
            if name in began:
                yield began.pop(name)
                return
            source = block.instructions.get(name)
            if source is not None and name not in seen and (source.opcode in _HANDS_ON or is_fused):
                seen.add(name)
                pending += source.operands
        if not is_fused:
            yield ("wait", -1)  # started in the previous iteration of the loop


def _work(operation: Operation, one: Instruction) -> Event:
    kernel = custom_call_target(one) if one.opcode == "custom-call" else ""
    return Event(
        "work",
        one.name,
        flops=operation.flops,
        dtype=operation.dtype,
        num_bytes=operation.num_bytes,
        across_rows=tuple((across.num_bytes, across.pitch) for across in operation.across_rows),
        kernel="" if kernel in NO_KERNELS else kernel,
    )


_HANDS_ON = ("get-tuple-element", "bitcast", "tuple", "copy", "async-update", "opt-barrier", "optimization-barrier")
