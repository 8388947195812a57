"""What the page's templates and script draw: the facts in words, colours and shares of a bar; no new numbers."""

from __future__ import annotations

import itertools
from typing import Any

from outlay.core.paths import join_parts, split_path
from outlay.core.quantities import counted, format_bytes
from outlay.devices.device_id import format_devices, format_ids
from outlay.devices.info import MeshInfo
from outlay.report.blocks_picture import Picture, draw
from outlay.report.leaf import LeafFacts
from outlay.report.show_facts import Count, Facts
from outlay.report.show_text import is_one_array, shape_text

# As many colours as the page has for the ways in which bytes live.
_MAX_SHARES = 6
# More devices than these are drawn small, over the whole width of the page.
_MANY_DEVICES = 32


def page_view(facts: Facts) -> dict[str, Any]:
    """What the templates fill in."""
    return {
        "title": _title(facts),
        "one_array": is_one_array(facts),
        "chips": _chips(facts),
        "simulated": facts.device_kind == "simulated",
        "abstract": facts.device_kind == "abstract",
        "stats": _array_stats(facts.leaves[0]) if is_one_array(facts) else _stats(facts),
        "shares": [] if is_one_array(facts) else _shares(facts),
        "notes": facts.notes,
        "meshes": _meshes(facts),
        "broad": len(facts.devices) > _MANY_DEVICES,
        "heat": _heat(facts),
    }


def leaves_view(facts: Facts) -> dict[str, Any]:
    """What the script draws: the table of leaves and their block pictures."""
    blocks = facts.shared_blocks
    numbers = {found: number for number, found in enumerate(blocks)}
    most = max((leaf.bytes_per_device for leaf in facts.leaves), default=0)
    leaves = [
        {
            **_leaf_texts(leaf),
            "share": leaf.bytes_per_device / most if most else 0,
            "picture": None if leaf.blocks is None else numbers[leaf.blocks],
        }
        for leaf in facts.leaves
    ]
    modules = [
        {
            "path": module.path,
            "parent": module.parent,
            "name": module.name,
            "leaves": module.num_leaves,
            "each": format_bytes(module.bytes_per_device),
        }
        for module in facts.modules
    ]
    ids = [device.id for device in facts.devices]
    return {
        "leaves": leaves,
        "modules": modules,
        "pictures": [_picture(draw(found)) for found in blocks],
        "colours": dict(zip(ids, device_colours(len(ids)), strict=True)),
    }


def _title(facts: Facts) -> str:
    if not is_one_array(facts):
        return "Where every array lives"
    leaf = facts.leaves[0]
    return leaf.path or f"{leaf.dtype} {shape_text(leaf.shape)}"


def _chips(facts: Facts) -> list[str]:
    meshes = ["mesh " + " × ".join(f"{name}={size}" for name, size in mesh.axes) for mesh in facts.meshes]
    shown = meshes[:2] + ([f"{len(meshes) - 2} more meshes"] if len(meshes) > 2 else [])
    counts = [f"{counted(len(facts.devices), 'device')}"]
    if facts.num_hosts > 1:
        counts.append(counted(facts.num_hosts, "host"))
    return [*shown, *counts]


def _stats(facts: Facts) -> list[dict[str, str]]:
    totals = facts.totals
    least, most = format_bytes(totals.bytes_least), format_bytes(totals.bytes_most)
    uneven = totals.bytes_least != totals.bytes_most
    return [
        _stat("On a device", most, f"at most; {least} at least" if uneven else "the same on every device"),
        _stat("State", format_bytes(totals.bytes_total), "every array counted once"),
        _stat("Replication", f"{totals.replication:.2f}×", "1.00× holds no copy"),
        _stat("Arrays", f"{totals.num_leaves:,}", "in the state"),
    ]


def _array_stats(leaf: LeafFacts) -> list[dict[str, str]]:
    each = format_bytes(leaf.bytes_per_device) if leaf.device_ids else "none"
    return [
        _stat("On a device", each, f"block {shape_text(leaf.local_shape)}"),
        _stat("The array", format_bytes(leaf.bytes_total), f"{leaf.dtype} {shape_text(leaf.shape)}"),
        _stat("Copies", str(leaf.num_copies), "of every block" if leaf.device_ids else "on devices"),
        _stat("Spec" if leaf.on_mesh else "Place", leaf.place, leaf.in_words),
    ]


def _stat(name: str, value: str, remark: str) -> dict[str, str]:
    return {"name": name, "value": value, "remark": remark}


def _shares(facts: Facts) -> list[dict[str, Any]]:
    total = facts.totals.bytes_total
    shown, rest = facts.totals.counts[:_MAX_SHARES], facts.totals.counts[_MAX_SHARES:]
    if rest:
        others = Count("in other ways", sum(c.num_leaves for c in rest), sum(c.bytes_total for c in rest))
        shown = (*shown, others)
    return [
        {
            "words": count.in_words,
            "leaves": count.num_leaves,
            "bytes": format_bytes(count.bytes_total),
            "percent": round(100 * count.bytes_total / total, 2) if total else 0,
        }
        for count in shown
    ]


def _meshes(facts: Facts) -> list[dict[str, Any]]:
    colours = dict(zip((d.id for d in facts.devices), device_colours(len(facts.devices)), strict=True))
    held = {device.id: format_bytes(device.num_bytes) for device in facts.devices}
    meshes = facts.meshes
    if not meshes and facts.devices:
        ids, hosts = tuple(d.id for d in facts.devices), tuple(d.host for d in facts.devices)
        meshes = (MeshInfo((("", len(ids)),), ids, hosts, "attached"),)

    def cell(mesh: MeshInfo, position: int) -> dict[str, Any]:
        device = mesh.device_ids[position]
        return {
            "id": int(device),
            "name": str(device),
            "host": mesh.hosts[position],
            "bytes": held[device],
            "colour": colours[device],
            "at": ", ".join(f"{axis}={i}" for axis, i in mesh.coordinates(position).items() if axis),
        }

    return [_mesh(mesh, [cell(mesh, position) for position in range(mesh.num_devices)]) for mesh in meshes]


def _mesh(mesh: MeshInfo, cells: list[dict[str, Any]]) -> dict[str, Any]:
    """The last axis across, the one before it down, a panel for every place on the axes before those.

    A tall panel of many devices is turned, to fit the screen.
    """
    *leading, (_, across) = mesh.axes
    *leading, (_, down) = leading or [("", 1)]
    turned = mesh.num_devices > _MANY_DEVICES and down > across
    panels = []
    for number, place in enumerate(itertools.product(*(range(length) for _, length in leading))):
        start = number * across * down
        rows = [cells[start + row * across :][:across] for row in range(down)]
        title = ", ".join(f"{name}={i}" for (name, _), i in zip(leading, place, strict=True))
        panels.append({"title": title, "rows": list(zip(*rows, strict=True)) if turned else rows})
    ways = ["down", "across"] if turned else ["across", "down"]
    axes = [
        {"name": name, "size": size, "way": ways[back] if back < 2 else "by panel"}
        for back, (name, size) in enumerate(reversed(mesh.axes))
    ]
    return {
        "axes": axes[::-1],
        "panels": panels,
        "small": mesh.num_devices > _MANY_DEVICES,
        "hosts": len(set(mesh.hosts)) > 1,
    }


def _heat(facts: Facts) -> dict[str, Any] | None:
    if is_one_array(facts) or not facts.heat.rows or not facts.heat.modules:
        return None
    largest = facts.heat.largest
    most = max(row.total for row in facts.heat.rows)
    rows = []
    last_hosts: tuple[int, ...] = ()
    for row in facts.heat.rows:
        rows.append(
            {
                "new_host": facts.num_hosts > 1 and row.hosts != last_hosts,
                "host": f"host{'s' if len(row.hosts) > 1 else ''} {format_ids(row.hosts)}",
                "devices": format_ids(row.device_ids),
                "label": format_devices(row.device_ids),
                "total": format_bytes(row.total),
                "share": round(100 * row.total / most, 1) if most else 0,
                "cells": [
                    {"bytes": format_bytes(count) if count else "–", "percent": _heat_percent(count, largest)}
                    for count in row.num_bytes
                ],
            }
        )
        last_hosts = row.hosts
    return {"modules": facts.heat.modules, "rows": rows}


def _heat_percent(count: int, largest: int) -> int:
    """How much of the hot colour a cell takes; what is not empty stays visible."""
    return max(6, round(78 * count / largest)) if count else 0


def _leaf_texts(leaf: LeafFacts) -> dict[str, Any]:
    parts = split_path(leaf.path)
    return {
        "path": leaf.path,
        "parent": join_parts(parts[:-1]),
        "name": join_parts(parts[-1:]),
        "kind": leaf.kind,
        "shape": shape_text(leaf.shape),
        "dtype": leaf.dtype,
        "local": shape_text(leaf.local_shape),
        "place": leaf.place,
        "words": leaf.in_words,
        "each": format_bytes(leaf.bytes_per_device) if leaf.device_ids else "–",
        "total": format_bytes(leaf.bytes_total),
        "bytes": leaf.bytes_per_device,
        "size": leaf.bytes_total,
        "copies": leaf.num_copies,
        "rule": leaf.rule,
        "reason": leaf.reason,
    }


def _picture(picture: Picture) -> dict[str, Any]:
    return {
        "rows": picture.rows,
        "columns": picture.columns,
        "rowDim": picture.row_dim,
        "columnDim": picture.column_dim,
        "aspect": picture.width / picture.height if picture.height and picture.width else 1,
        "panels": [
            {
                "title": panel.title,
                "cells": [[{"devices": ids, "text": format_ids(ids)} for ids in row] for row in panel.cells],
            }
            for panel in picture.panels
        ],
    }


# After Okabe and Ito, lightened.
_FEW = ("#7cc4f4", "#f5b544", "#52c79a", "#f3e571", "#e5a3cb", "#f28c64", "#9aa8f5", "#bcc4cf")
# One hue after the other with growing lightness, so that order survives every colour blindness.
_RAMP = ((0x7B, 0x93, 0xE8), (0x5F, 0xB4, 0xD0), (0x7F, 0xD0, 0xA5), (0xCF, 0xE0, 0x7A), (0xFF, 0xEF, 0xA8))


def device_colours(num_devices: int) -> list[str]:
    """A colour for each device by position, as `#rrggbb`."""
    if num_devices <= len(_FEW):
        return list(_FEW[:num_devices])
    return [_on_ramp(position / (num_devices - 1)) for position in range(num_devices)]


def _on_ramp(share: float) -> str:
    place = share * (len(_RAMP) - 1)
    step = min(int(place), len(_RAMP) - 2)
    mixed = (round(low + (high - low) * (place - step)) for low, high in zip(_RAMP[step], _RAMP[step + 1], strict=True))
    return "#" + "".join(f"{channel:02x}" for channel in mixed)
