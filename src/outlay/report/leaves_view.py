"""What only the page of `show` has: the data of its script, with the block picture of each leaf, and its devices."""

from __future__ import annotations

import itertools
import re
from typing import Any

from outlay.core.equal_layers import fold_numbers
from outlay.core.paths import join_parts, split_path
from outlay.core.quantities import format_bytes
from outlay.core.terminal_text import MAX_UNFOLDED
from outlay.devices.mesh_info import MeshInfo
from outlay.render.pictures import BlockGrid, DeviceCell, MeshGrid
from outlay.report.array_blocks import draw
from outlay.report.leaf import LeafFacts
from outlay.report.show_facts import MANY_DEVICES, Facts


def leaves_view(facts: Facts) -> dict[str, Any]:
    """Return the data for the script: the table of leaves and their block pictures."""
    blocks = facts.shared_blocks
    numbers = {block: number for number, block in enumerate(blocks)}
    most = max((leaf.bytes_per_device for leaf in facts.leaves), default=0)
    leaves = [
        {
            **_leaf_texts(leaf),
            "share": leaf.bytes_per_device / most if most else 0,
            "picture": None if leaf.blocks is None else numbers[leaf.blocks],
            "like": "",
            "folded": None,
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
            "like": "",
            "folded": None,
        }
        for module in facts.modules
    ]
    if len(facts.leaves) > MAX_UNFOLDED:
        _mark_alike(facts, leaves, modules)
    ids = [device.id for device in facts.devices]
    return {
        "leaves": leaves,
        "modules": modules,
        "pictures": [_picture(draw(block)) for block in blocks],
        "colours": dict(zip(ids, device_colours(len(ids)), strict=True)),
    }


def device_meshes(facts: Facts) -> list[MeshGrid]:
    """Return the devices of each mesh as the page draws them."""
    colours = dict(zip((d.id for d in facts.devices), device_colours(len(facts.devices)), strict=True))
    held = {device.id: format_bytes(device.num_bytes) for device in facts.devices}
    meshes = facts.meshes
    # Arrays that are on no mesh: their devices as a row without a name.
    if not meshes and facts.devices:
        ids, hosts = tuple(d.id for d in facts.devices), tuple(d.host for d in facts.devices)
        meshes = (MeshInfo((("", len(ids)),), ids, hosts, "attached"),)

    def cell(mesh: MeshInfo, position: int) -> DeviceCell:
        device, host = mesh.device_ids[position], mesh.hosts[position]
        at = ", ".join(f"{axis}={i}" for axis, i in mesh.coordinates(position).items() if axis)
        hint = f"device {device}{f' at {at}' if at else ''}, host {host}: {held[device]}"
        remark = f"host {host}" if len(set(mesh.hosts)) > 1 else held[device]
        # In a job a device prints as process:index; the page's script compares plain numbers.
        return DeviceCell(int(device), str(device), colours[device], remark, hint)

    return [_mesh(mesh, [cell(mesh, position) for position in range(mesh.num_devices)]) for mesh in meshes]


def _mesh(mesh: MeshInfo, cells: list[DeviceCell]) -> MeshGrid:
    """Draw the last axis across, the one before it down, and one panel for each index of the other axes.

    A tall panel of many devices is turned to fit the screen.
    """
    *leading, (_, across) = mesh.axes
    *leading, (_, down) = leading or [("", 1)]
    turned = mesh.num_devices > MANY_DEVICES and down > across
    panels = []
    for number, coordinates in enumerate(itertools.product(*(range(length) for _, length in leading))):
        start = number * across * down
        rows = [cells[start + row * across :][:across] for row in range(down)]
        title = ", ".join(f"{name}={i}" for (name, _), i in zip(leading, coordinates, strict=True))
        panels.append((title, list(zip(*rows, strict=True)) if turned else rows))
    ways = ["down", "across"] if turned else ["across", "down"]
    ways = [*["by panel"] * (len(mesh.axes) - 2), *ways[: len(mesh.axes)][::-1]]
    axes = {name: f"{size} {way}" for (name, size), way in zip(mesh.axes, ways, strict=True) if name}
    return MeshGrid(axes, panels, mesh.num_devices > MANY_DEVICES)


def _mark_alike(facts: Facts, leaves: list[dict[str, Any]], modules: list[dict[str, Any]]) -> None:
    """Mark siblings that differ only in numbers: the page shows the first for all of them, until it is unfolded."""
    below: dict[str, list[tuple[Any, ...]]] = {}
    for leaf in facts.leaves:
        parts = split_path(leaf.path)
        where = (leaf.kind, leaf.shape, leaf.dtype, leaf.place, leaf.device_ids, leaf.rule)
        for length in range(1, len(parts) + 1):
            below.setdefault(join_parts(parts[:length]), []).append((parts[length:], where))
    groups: dict[tuple[Any, ...], list[tuple[dict[str, Any], int]]] = {}
    sizes = [module.bytes_per_device for module in facts.modules] + [leaf.bytes_per_device for leaf in facts.leaves]
    for entry, size in zip([*modules, *leaves], sizes, strict=True):
        key = (entry["parent"], re.sub(r"\d+", "*", entry["name"]), tuple(below[entry["path"]]))
        groups.setdefault(key, []).append((entry, size))
    for group in groups.values():
        first, *others = [entry for entry, _ in group]
        if others:
            name = fold_numbers([entry["name"] for entry, _ in group])
            first["folded"] = {"name": f"{name} x{len(group)}", "each": format_bytes(sum(size for _, size in group))}
        for entry in others:
            entry["like"] = first["path"]


def _leaf_texts(leaf: LeafFacts) -> dict[str, Any]:
    parts = split_path(leaf.path)
    return {
        "path": leaf.path,
        "parent": join_parts(parts[:-1]),
        "name": join_parts(parts[-1:]),
        "kind": leaf.kind,
        "shape": str(leaf.shape),
        "dtype": leaf.dtype,
        "local": str(leaf.local_shape),
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


def _picture(picture: BlockGrid) -> dict[str, Any]:
    return {
        "rows": picture.rows,
        "columns": picture.columns,
        "rowDim": picture.row_dim,
        "columnDim": picture.column_dim,
        "aspect": picture.width / picture.height if picture.height and picture.width else 1,
        "panels": [
            {
                "title": panel.title,
                "cells": [[{"devices": ids, "text": picture.format_ids(ids)} for ids in row] for row in panel.cells],
            }
            for panel in picture.panels
        ],
    }


# The palette of Okabe and Ito, lightened.
_FEW = ("#7cc4f4", "#f5b544", "#52c79a", "#f3e571", "#e5a3cb", "#f28c64", "#9aa8f5", "#bcc4cf")
# One hue after another with growing lightness, so that the order shows with every colour blindness.
_RAMP = ((0x7B, 0x93, 0xE8), (0x5F, 0xB4, 0xD0), (0x7F, 0xD0, 0xA5), (0xCF, 0xE0, 0x7A), (0xFF, 0xEF, 0xA8))


def device_colours(num_devices: int) -> list[str]:
    """Return a colour for each device by position, as `#rrggbb`."""
    if num_devices <= len(_FEW):
        return list(_FEW[:num_devices])
    return [_on_ramp(position / (num_devices - 1)) for position in range(num_devices)]


def _on_ramp(share: float) -> str:
    position = share * (len(_RAMP) - 1)
    step = min(int(position), len(_RAMP) - 2)
    mixed = (
        round(low + (high - low) * (position - step)) for low, high in zip(_RAMP[step], _RAMP[step + 1], strict=True)
    )
    return "#" + "".join(f"{channel:02x}" for channel in mixed)
