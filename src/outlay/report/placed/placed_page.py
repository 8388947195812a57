"""The explanation of a placed program as a page: the facts in words, colours and shares of bars; no new numbers."""

from __future__ import annotations

from typing import Any

from outlay.analysis.cost.estimate import format_range
from outlay.core.quantities import counted, format_bytes, format_flops, format_seconds
from outlay.report.html import templates
from outlay.report.placed.placed_explanation import PlacedExplanation
from outlay.report.placed.placed_words import bound, cost, devices, rate

_NUM_COLOURS = 6


def page_of_parts(found: PlacedExplanation) -> str:
    """The explanation as a complete page."""
    return templates().get_template("placed.html.j2").render(view=_view(found))


def _view(found: PlacedExplanation) -> dict[str, Any]:
    axes = " × ".join(f"{name}={size}" for name, size in found.mesh.axes)
    return {
        "title": found.name,
        "chips": [f"mesh {axes}", *([str(found.target)] if found.target else [])],
        "simulated": found.mesh.kind == "simulated",
        "stats": _stats(found),
        "bound": bound(found),
        "notes": found.incomplete,
        "remarks": found.notes,
        "devices": _devices(found),
        "findings": [{"kind": one.kind, "text": one.text, "fix": one.fix} for one in found.findings],
        "parts": _parts(found),
        "sent": _sent(found),
        "sent_head": f"{rate(found.bytes_per_step)} a step",
        "often": "every step" if found.num_steps_at_once == 1 else f"every {found.num_steps_at_once} steps",
        "cached": [
            {
                "path": one.path,
                "array": f"{one.dtype}{list(one.shape)}",
                "bytes": format_bytes(one.num_bytes),
                "owners": devices(one.owners),
                "copies": devices(one.sent_to) or "none",
            }
            for one in found.cached
        ],
        "seconds": format_seconds(found.seconds),
    }


def _stats(found: PlacedExplanation) -> list[dict[str, str]]:
    waits = found.exchange_seconds
    busiest = cost(found, max(found.work_by_device.values()))
    return [
        {
            "name": "Best possible gain",
            "value": f"{found.best_gain:.1f}x",
            "remark": "of placing whole parts: sum / max",
        },
        {"name": "This placement", "value": f"{found.gain:.1f}x", "remark": "at most, were nothing exchanged"},
        {"name": "Work", "value": cost(found, found.work), "remark": f"a step; busiest device {busiest}, estimated"},
        {
            "name": "Sent in a step",
            "value": rate(found.bytes_per_step),
            "remark": f"in {counted(len(found.sent), 'transfer')}"
            + (f", up to {format_seconds(waits)}" if waits else ""),
        },
    ]


def _devices(found: PlacedExplanation) -> list[dict[str, Any]]:
    """Each device as a bar of its parts, the busiest the longest."""
    most = max(found.work_by_device.values()) or 1.0
    colours = _colours(found)
    return [
        {
            "id": str(device),
            "value": cost(found, work) if work else "nothing to do",
            "parts": [
                {
                    "name": part.name,
                    "colour": colours[part.name],
                    "percent": round(100 * part.cost / most, 2),
                    "title": f"{part.name}: {cost(found, part.cost)}",
                }
                for part in found.parts
                if device in part.devices
            ],
        }
        for device, work in found.work_by_device.items()
    ]


def _colours(found: PlacedExplanation) -> dict[str, str]:
    return {part.name: f"s{number % _NUM_COLOURS}" for number, part in enumerate(found.parts)}


def _parts(found: PlacedExplanation) -> list[dict[str, Any]]:
    most, colours = max(part.share for part in found.parts) or 1.0, _colours(found)
    return [
        {
            "name": part.name,
            "colour": colours[part.name],
            "devices": devices(part.devices),
            "state": format_bytes(part.num_bytes),
            "flops": format_flops(part.flops),
            "traffic": format_bytes(part.bytes_accessed),
            "seconds": format_range(part.seconds) if part.seconds else "",
            "share": f"{part.share:.1%}",
            "bar": round(part.share / most, 4),
            "peak": "" if part.peak is None else format_bytes(part.peak),
        }
        for part in found.parts
    ]


def _sent(found: PlacedExplanation) -> list[dict[str, Any]]:
    most = max((one.bytes_in_all for one in found.sent), default=0.0) or 1.0
    return [
        {
            "output": f"{one.part}:{one.port}",
            "origin": devices(one.origin),
            "target": "one another" if one.is_within else devices(one.target),
            "bytes": rate(one.bytes_in_all),
            "share": round(one.bytes_in_all / most, 4),
            "seconds": "" if one.seconds is None else format_seconds(one.seconds),
            "readers": ", ".join(one.readers),
        }
        for one in found.sent
    ]
