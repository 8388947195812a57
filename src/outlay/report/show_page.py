"""The report on where every array lives: a table of leaves, the devices, and the blocks of each array."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Iterator
from typing import Any

from outlay.core.quantities import counted, format_bytes, plural
from outlay.devices.device_names import format_devices, format_ids
from outlay.devices.mesh_info import DeviceId
from outlay.render.page import (
    ANY_WIDTH,
    Block,
    Chip,
    Column,
    Columns,
    Line,
    Notes,
    Page,
    Section,
    Segment,
    Stat,
    Stats,
    Table,
    colour_of,
)
from outlay.render.pictures import ArrayTable, DeviceGrid, HeatMap, HeatRow, MeshGrid, Stack
from outlay.report.array_blocks import draw
from outlay.report.leaf import LeafFacts
from outlay.report.show_facts import MANY_DEVICES, Count, Facts

_WIDTH_WITH_REASONS = 140
"""A narrower terminal would break the reasons into single words, and rules into several lines."""

_NARROW, _WIDE = range(_WIDTH_WITH_REASONS), range(_WIDTH_WITH_REASONS, sys.maxsize)
_MAX_SHARES = 6
"""The most layouts that the page shows one by one: as many as it has colours."""


def show_page(facts: Facts) -> Page:
    """Build the report from facts."""
    return Page(
        title=_title(facts),
        headline=_headline(facts),
        chips=list(_chips(facts)),
        blocks=list(_blocks(facts)),
        footer="Bytes are per device unless stated otherwise.",
    )


def _blocks(facts: Facts) -> Iterator[Block]:
    if any(isinstance(device.id, DeviceId) for device in facts.devices):
        yield Line("a device is written process:index", "dim", medium="text")
    leaf = facts.leaves[0] if _is_one_array(facts) else None
    if leaf:
        yield from (Line(words, medium="text") for words in _array_in_words(leaf))
        if leaf.blocks is not None:
            yield dataclasses.replace(draw(leaf.blocks), medium="text")
    elif facts.leaves:
        yield from _leaves(facts)
        yield from (Line(words, medium="text") for words in _totals(facts))
    else:
        yield Line("no arrays", medium="text")
    yield _array_stats(leaf) if leaf else _stats(facts)
    yield Notes(facts.notes, is_warning=True)
    if not leaf:
        yield from _shares(facts)
    broad = len(facts.devices) > MANY_DEVICES
    arrays = ArrayTable(functools.partial(_leaves_view, facts), of_one=leaf is not None, is_broad=broad, medium="html")
    yield Columns(list(_pictures(facts, arrays)), "broad" if broad else "one" if leaf else "")
    if not leaf:
        yield arrays


def _leaves_view(facts: Facts) -> dict[str, Any]:
    from outlay.report.leaves_view import leaves_view  # text does without

    return leaves_view(facts)


def _device_meshes(facts: Facts) -> list[MeshGrid]:
    from outlay.report.leaves_view import device_meshes

    return device_meshes(facts)


def _array_in_words(leaf: LeafFacts) -> Iterator[str]:
    """Yield what the text says of one array, above the picture of its blocks."""
    name = f"{leaf.path}: " if leaf.path else ""
    place = f"{leaf.place}: " if leaf.on_mesh else ""
    yield f"{name}{leaf.dtype} {leaf.shape}, {place}{leaf.in_words}"
    if leaf.blocks is None:
        yield f"{format_bytes(leaf.bytes_total)}; {leaf.reason}"
        return
    each = f"{leaf.local_shape}, {format_bytes(leaf.bytes_per_device)}"
    yield f"a device holds {each} of {format_bytes(leaf.bytes_total)}"
    if leaf.rule:
        yield f"rule: {leaf.rule}"
    if leaf.reason:
        yield f"reason: {leaf.reason}"
    yield ""


def _leaves(facts: Facts) -> Iterator[Block]:
    """Yield the table of leaves, one row each, similar ones folded; with reasons if there is room."""
    has_rules, has_reasons = (any(words) for words in zip(*((x.rule, x.reason) for x in facts.leaves), strict=True))
    columns = [
        (Column("path", "path"), lambda leaf: leaf.path),
        (Column("shape"), lambda leaf: str(leaf.shape)),
        (Column("local"), lambda leaf: str(leaf.local_shape)),
        (Column("dtype"), lambda leaf: leaf.dtype),
        (Column("spec"), lambda leaf: leaf.place),
        (Column("a device", "number"), lambda leaf: format_bytes(leaf.bytes_per_device) if leaf.device_ids else "-"),
        (Column("copies", "number"), lambda leaf: str(leaf.num_copies) if leaf.device_ids else "-"),
    ]
    if has_rules:
        columns.append((Column("rule", widths=_WIDE if has_reasons else ANY_WIDTH), lambda leaf: leaf.rule))
    if has_rules and has_reasons:
        columns.append((Column("rule", widths=_NARROW), _rule_numbers))
    if has_reasons:
        columns.append((Column("reason", "words", widths=_WIDE), lambda leaf: leaf.reason))
    yield Line("", medium="text")
    yield Table.of(facts.leaves, columns, all_at="to_dict(), or the page, to_html()", medium="text")
    if has_reasons:
        left_out = f"(the reasons are left out: they need {_WIDTH_WITH_REASONS} columns)"
        lines = (*(f"rule {rule}" for rule in _rules(facts)), left_out)
        yield from (Line(line, "dim", medium="text", widths=_NARROW) for line in lines)


def _rule_numbers(leaf: LeafFacts) -> str:
    """Return the deciding rules, by number only."""
    return ", ".join(rule.partition(".")[0] for rule in leaf.rules)


def _rules(facts: Facts) -> list[str]:
    """Return every rule that decided something, in the order of the layout."""

    def order(rule: str) -> tuple[int, str]:
        # By number, but as text: a plan that is read from a file may have anything in its place.
        number = rule.partition(".")[0]
        return len(number), number

    return sorted({rule for leaf in facts.leaves for rule in leaf.rules}, key=order)


def _pictures(facts: Facts, arrays: ArrayTable) -> Iterator[Block]:
    if arrays.of_one:
        yield Section("which device holds which slice", [arrays], medium="html")
    if facts.meshes or facts.devices:
        yield Section("devices", [DeviceGrid(functools.partial(_device_meshes, facts))], medium="html")
    if not arrays.of_one and facts.heat.rows and facts.heat.modules:
        yield Section("bytes by device and module", [_heat(facts)])


def _is_one_array(facts: Facts) -> bool:
    """Return whether the report is about a single array, whose blocks are the point."""
    return len(facts.leaves) == 1


def _title(facts: Facts) -> str:
    if not _is_one_array(facts):
        return "Where every array lives"
    leaf = facts.leaves[0]
    return leaf.path or f"{leaf.dtype} {leaf.shape}"


def _headline(facts: Facts) -> str:
    """Say what the report is about: the meshes, or the devices if there is no mesh."""
    if facts.meshes:
        return "; ".join(map(str, facts.meshes))
    if not facts.devices:
        return "on no device"
    simulated = "simulated " if facts.device_kind == "simulated" else ""
    return f"{counted(len(facts.devices), f'{simulated}device')}, no mesh"


def _chips(facts: Facts) -> Iterator[Chip]:
    meshes = ["mesh " + " × ".join(f"{name}={size}" for name, size in mesh.axes) for mesh in facts.meshes]
    yield from map(Chip, meshes[:2])
    if len(meshes) > 2:
        yield Chip(f"{len(meshes) - 2} more meshes")
    yield Chip(counted(len(facts.devices), "device"))
    if facts.num_hosts > 1:
        yield Chip(counted(facts.num_hosts, "host"))
    if facts.device_kind == "simulated":
        hint = "Simulated CPU devices: placement, shapes and bytes are right, speed is not."
        yield Chip("simulated devices", "warning", hint)
    if facts.device_kind == "abstract":
        yield Chip("abstract mesh, no devices", "warning", "Only the shape of the mesh is known.")


def _stats(facts: Facts) -> Stats:
    totals = facts.totals
    least, most = format_bytes(totals.bytes_least), format_bytes(totals.bytes_most)
    uneven = totals.bytes_least != totals.bytes_most
    return Stats(
        [
            Stat("On a device", most, f"at most; {least} at least" if uneven else "the same on every device"),
            Stat("State", format_bytes(totals.bytes_total), "every array counted once"),
            Stat("Replication", f"{totals.replication:.2f}×", "1.00× means no copies"),
            Stat("Arrays", f"{totals.num_leaves:,}", "in the state"),
        ]
    )


def _array_stats(leaf: LeafFacts) -> Stats:
    each = format_bytes(leaf.bytes_per_device) if leaf.device_ids else "none"
    return Stats(
        [
            Stat("On a device", each, f"block {leaf.local_shape}"),
            Stat("The array", format_bytes(leaf.bytes_total), f"{leaf.dtype} {leaf.shape}"),
            Stat("Copies", str(leaf.num_copies), "of every block" if leaf.device_ids else "on devices"),
            Stat("Spec" if leaf.on_mesh else "Place", leaf.place, leaf.in_words),
        ]
    )


def _totals(facts: Facts) -> Iterator[str]:
    totals = facts.totals
    least, most = format_bytes(totals.bytes_least), format_bytes(totals.bytes_most)
    each = most if totals.bytes_least == totals.bytes_most else f"{least} to {most}"
    held = f", {each} a device, replication {totals.replication:.2f}" if facts.devices else ""
    yield ""
    leaves = counted(totals.num_leaves, "leaf", "leaves")
    yield f"state: {leaves}, {format_bytes(totals.bytes_total)} counted once{held}"
    for count in totals.counts:
        noun = plural(count.num_leaves, "leaf", "leaves")
        yield f"  {count.num_leaves:>5} {noun:<5} {count.in_words} ({format_bytes(count.bytes_total)})"


def _shares(facts: Facts) -> Iterator[Block]:
    total = facts.totals.bytes_total
    shown, rest = facts.totals.counts[:_MAX_SHARES], facts.totals.counts[_MAX_SHARES:]
    if rest:
        others = Count("in other ways", sum(c.num_leaves for c in rest), sum(c.bytes_total for c in rest))
        shown = (*shown, others)
    segments = [
        Segment(
            count.in_words,
            count.bytes_total / total if total else 0,
            colour_of(number),
            format_bytes(count.bytes_total),
            counted(count.num_leaves, "array"),
        )
        for number, count in enumerate(shown)
    ]
    if len(segments) > 1:
        yield Section("how the bytes live", [Stack(segments)], medium="html")


def _heat(facts: Facts) -> HeatMap:
    heat, many_hosts = facts.heat, facts.num_hosts > 1
    most = max(row.total for row in heat.rows)
    rows = [
        HeatRow(
            format_ids(row.device_ids),
            [(format_bytes(n) if n else "-", n / heat.largest if heat.largest else 0) for n in row.num_bytes],
            format_bytes(row.total),
            row.total / most if most else 0,
            format_ids(row.hosts) if many_hosts else "",
            format_devices(row.device_ids),
        )
        for row in heat.rows
    ]
    return HeatMap("device", heat.modules, rows, "host" if many_hosts else "")
