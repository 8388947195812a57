"""What the chosen way to run is, what it waits for, and what comes next, as a paragraph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from outlay.core.quantities import counted, format_bytes, format_range
from outlay.devices.mesh_spec import MeshSpec
from outlay.layout.layout import Layout
from outlay.search.compiled_price import Price

_ROLES = {
    "data": "samples are split",
    "fsdp": "samples are split",
    "model": "layers are split inside",
    "expert": "samples and experts are split",
}


def in_a_paragraph(layout: Layout, mesh: str, price: Price, next_best: Sequence[tuple[str, str]] = ()) -> str:
    """Describe a choice.

    Args:
        layout: the layout that is chosen.
        mesh: its mesh, as text.
        price: its price.
        next_best: the next candidates, each with the reason why it lost.
    """
    sentences = [*_of_mesh(layout, MeshSpec.parse(mesh), price), *_of_price(price)]
    sentences += [f"Next is {name}: {why}." for name, why in next_best[:1]]
    return " ".join(sentences)


def _of_mesh(layout: Layout, mesh: MeshSpec, price: Price) -> Iterator[str]:
    roles = []
    # Axes that cross together need not cross alone, which the exchanges over one of them show.
    crossing = {
        axis for axes in price.crossing for axis in axes.split("+") if axis == axes or axis not in price.bytes_by_axes
    }
    for axis, size in mesh.axes:
        if size == 1:
            continue
        # Several rules may speak of an axis, as one of FSDP does of the axis over which another splits tokens.
        roles_by_rule = (_in_words(rule.placement, axis, size) for rule in layout if axis in rule.axes)
        what = next(filter(None, roles_by_rule), "") or _ROLES.get(axis, "arrays are split")
        where = "across hosts" if axis in crossing else "inside a host"
        roles.append(f"over {axis}={size} ({where}) {what}")
    if roles:
        yield f"{'; '.join(roles)}.".capitalize()


def _in_words(placement: Any, axis: str, size: int) -> str:
    if getattr(placement, "stage_axis", "") == axis:
        return f"layers are a pipeline: {placement.in_words(size)}"
    if getattr(placement, "context_axis", "") == axis:
        return f"tokens are split, with an exchange by {placement.exchange or 'what sends least'}"
    return ""


def _of_price(price: Price) -> Iterator[str]:
    total = sum(price.parts.values()) or 1.0
    largest = sorted(price.parts, key=lambda name: -price.parts[name])[:2]
    parts = " and ".join(f"{price.parts[name] / total:.0%} {name}" for name in largest if price.parts[name])
    yield f"A step takes {format_range(price.seconds_low, price.seconds_high)}, {parts}."
    if price.bytes_by_axes:
        sent = sorted(price.bytes_by_axes.items(), key=lambda item: -item[1])
        some = ", ".join(f"{format_bytes(num)} over {axes or 'devices'}" for axes, num in sent[:3])
        waits = price.parts.get("communication", 0.0) / total
        yield f"A device sends {some}, and waits for it {waits:.0%} of the time."
    left = price.capacity - price.peak_bytes
    yield f"It needs {format_bytes(price.peak_bytes)} of {format_bytes(price.capacity)}, {format_bytes(left)} are left."


def of_all(num_considered: int, num_compiled: int, num_ruled_out: int) -> str:
    """Say what it was chosen from.

    >>> of_all(4704, 4, 3000)
    'Of 4,704 ways to run it arithmetic ruled out 3,000 and ordered the rest; 4 were compiled.'
    """
    ways, ruled_out = counted(num_considered, "way"), f"{num_ruled_out:,}"
    return f"Of {ways} to run it arithmetic ruled out {ruled_out} and ordered the rest; {num_compiled} were compiled."
