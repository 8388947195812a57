"""Build the memory sections of the report: the compiler's figures, and memory over the schedule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING

from outlay.analysis.attribution.program_facts import MemoryFacts
from outlay.core.quantities import counted, format_bytes
from outlay.render.page import Block, Column, Line, Section, Segment, Table, colour_of, with_bars
from outlay.render.pictures import Areas, Stack
from outlay.report.explain.explain_tables import line_cell

if TYPE_CHECKING:
    from outlay.analysis.attribution.live_memory import LiveMemory

_VISIBLE = 0.05
"""The smallest used share of memory at which the bar shows the whole memory; below it, the bar shows the used part."""

_MAX_HELD = 10
_LAYERS: Mapping[str, tuple[str, ...]] = {
    "parameters": ("parameters",),
    "optimizer": ("optimizer",),
    "batch and others": ("batch", "other state", "constants", "outputs"),
    "activations": ("activations",),
    "backward pass": ("backward pass",),
    "collectives": ("collectives",),
    "other values": ("other values",),
}
"""Owners that the picture merges into one layer, from bottom to top."""

_COLOURS = ("s0", "s1", "s5", "s2", "s3", "s4", "work")
_EXACT = 0.005
"""The relative difference up to which the peak of the schedule counts as the compiler's."""


def memory_of_device(memory: MemoryFacts | None) -> Iterator[Block]:
    """Show what a device holds, and the largest arrays."""
    if memory is None:
        return
    arguments = {**memory.state_by_kind, "batch": memory.batch}
    # Nearly every program has a few bytes of them.
    worth_saying = memory.constants > memory.peak / 100
    constants = f"; constants {format_bytes(memory.constants)}" if worth_saying else ""
    lines = [
        f"arguments {format_bytes(memory.arguments)}: {_listed(arguments)}",
        f"outputs {format_bytes(memory.outputs)}, {format_bytes(memory.donated)} of it in donated memory; temporaries "
        f"{format_bytes(memory.temporaries)}{constants}; peak {format_bytes(memory.peak)}",
    ]
    if memory.on_host:
        values = memory.values_on_host
        held = {"state": memory.on_host - values, "values for the backward pass": values}
        lines.append(f"on its host {format_bytes(memory.on_host)}: {_listed(held)}")
    columns = [
        (Column("largest", "number"), with_bars(memory.largest, lambda value: value.num_bytes, format_bytes)),
        (Column("array", "code"), lambda value: f"{value.dtype}{list(value.shape)}"),
        (Column("what", "words"), lambda value: value.what),
        (Column("line", "code"), lambda value: line_cell(value.source)),
    ]
    table = Table.of(memory.largest, columns)
    yield Section("memory of a device", [_gauge(memory), *map(Line, lines), table])


def _gauge(memory: MemoryFacts) -> Stack:
    """Draw the memory of a device as a bar; if most of it is free, only the used part."""
    parts = {
        **memory.state_by_kind,
        "batch": memory.batch,
        "temporaries": memory.temporaries,
        "constants": memory.constants,
    }
    # Where temporaries take turns, as on TPUs, the parts come to more than the peak.
    used = max(memory.peak, sum(parts.values())) or 1
    whole = max(used, memory.capacity) if memory.capacity and used > _VISIBLE * memory.capacity else used
    segments = [
        Segment(name, size / whole, colour_of(number), format_bytes(size))
        for number, (name, size) in enumerate(parts.items())
        if size
    ]
    of = f"of {format_bytes(memory.capacity)}" if memory.capacity else ""
    peak = Segment("peak", memory.peak / whole, "mark", format_bytes(memory.peak), of)
    return Stack(segments, peak, medium="html")


def memory_over_schedule(live: LiveMemory | None, memory: MemoryFacts | None) -> Iterator[Block]:
    """Show the live memory at each point of the schedule, and its owners at the peak."""
    if live is None or not live.peak:
        return
    owners = live.by_owner()
    layers = [
        Segment(name, 0, colour, format_bytes(size) if (size := sum(owners[owner] for owner in parts)) else "")
        for (name, parts), colour in zip(_LAYERS.items(), _COLOURS, strict=True)
    ]
    sizes = [[sum(held.get(owner, 0) for owner in parts) for parts in _LAYERS.values()] for _, held in live.stretches]
    fullest = max(range(len(sizes)), key=lambda number: sum(sizes[number]))
    drawn = Areas(layers, sizes, (fullest, "the peak"), "the schedule", "alive", lambda size: format_bytes(int(size)))
    remark = f"{counted(live.num_points, 'instruction')}, a loop's body once"
    legend = Line("the legend shows what is live at the peak", "dim", medium="html")
    blocks = [drawn, legend, Line(_agreement(live, memory)), _held(live)]
    yield Section("memory over the schedule", blocks, remark)


def _agreement(live: LiveMemory, memory: MemoryFacts | None) -> str:
    """Compare the peak of the schedule with the compiler's."""
    words = f"peak at {live.peak_instruction}, {live.peak_at:.0%} into the schedule: {format_bytes(live.peak)}"
    if memory is None or not memory.peak:
        return words
    difference = memory.peak - live.peak
    if abs(difference) <= _EXACT * memory.peak:
        return f"{words}, as the compiler says"
    by = f"{format_bytes(abs(difference))} ({abs(difference) / memory.peak:.0%})"
    more = "more than the live arrays, for padding, fragmentation and reserved buffers"
    less = "less, because it reuses the memory of arrays that are counted separately here"
    return f"{words}; the compiler reports {format_bytes(memory.peak)}, {by} {more if difference > 0 else less}"


def _held(live: LiveMemory) -> Table:
    """List the owners of the memory at the peak, the largest first."""
    columns = [
        (Column("at the peak", "number"), with_bars(live.held, lambda one: one.num_bytes, format_bytes)),
        (Column("owner"), lambda one: one.owner),
        (Column("what", "words"), lambda one: one.what),
        (Column("arrays", "number"), lambda one: f"{one.num_arrays:,}"),
        (Column("line", "code"), lambda one: line_cell(one.source)),
    ]
    left = list(accumulate((one.num_bytes for one in live.held), lambda left, size: left - size, initial=live.peak))
    rest = f"and {len(live.held) - _MAX_HELD} more, together {format_bytes(left[min(_MAX_HELD, len(live.held))])}"
    return Table.of(live.held, columns, limit=_MAX_HELD, rest=rest)


def _listed(sizes: dict[str, int]) -> str:
    return ", ".join(f"{name} {format_bytes(size)}" for name, size in sizes.items() if size)
