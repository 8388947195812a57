"""Layouts for any Brain."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from outlay import Layout, by_module, replicate
from outlay.brain.brain import Brain
from outlay.kit import DEFAULT_MESH, INPUTS, Mode
from outlay.layout import by_rows

COPIES, BY_NEURON, BY_MODULE = "copies", "by-neuron", "by-module"
MODES: Mapping[str, Mode] = {BY_NEURON: "manual", BY_MODULE: "placed"}
"""The modes of layouts that XLA does not partition."""
MESHES = {COPIES: "devices=-1", BY_NEURON: "neurons=-1", BY_MODULE: "devices=-1"}


def brain_layouts(brain: Brain) -> dict[str, Layout | Callable[[int], Layout]]:
    """Return the layouts by name: `copies`, `by-neuron`, and `by-module`, which depends on the number of devices."""
    return {
        # A pattern that begins with a wildcard leaves the batch out, so that it needs a rule of its own.
        COPIES: Layout([("**", replicate()), ("batch.**", replicate())]),
        BY_NEURON: by_rows("neurons"),
        BY_MODULE: lambda num_devices: by_module(balanced(brain, num_devices)),
    }


def goes_with(layout: Layout) -> tuple[str, Mode]:
    """Return the mesh, as text, and the mode that the rules of a layout need."""
    if layout.row_axes:
        return f"{layout.row_axes[0]}=-1", MODES[BY_NEURON]
    if layout.names_devices:
        return MESHES[BY_MODULE], MODES[BY_MODULE]
    return DEFAULT_MESH, "auto"


def balanced(brain: Brain, num_devices: int) -> dict[str, int]:
    """Assign whole modules to devices, so that the state is spread as evenly as possible.

    With a device for every module, modules get devices in this order: those that read the Brain's inputs, those that
    write its outputs, then all others, each group in the order of the Brain. With fewer devices, the largest module
    comes first and each goes to the device with the least state (longest processing time first, Graham 1969).

    Args:
        brain: the Brain.
        num_devices: the number of devices.

    Example:
        >>> from outlay.brain import Brain
        >>> from outlay.brain import Connection
        >>> from outlay.brain import LinearSpiker
        >>> eyes = {name: LinearSpiker() for name in ("left", "middle", "right")}
        >>> wide = {"left": (3,), "middle": (9,), "right": (5,)}
        >>> brain = Brain(eyes, [Connection(f"inputs:{eye}", f"{eye}:signal") for eye in eyes], inputs=wide)
        >>> balanced(brain, 3), balanced(brain, 2)
        ({'left': 0, 'middle': 1, 'right': 2}, {'middle': 0, 'right': 1, 'left': 1})
    """
    modules = _border_first(brain)
    if num_devices >= len(modules):
        return {name: position for position, name in enumerate(modules)}
    sizes = {facts.name: facts.num_elements for facts in brain.inspect().modules}
    held = [0] * num_devices
    placed = {}
    for name in sorted(modules, key=lambda name: -sizes[name]):
        placed[name] = held.index(min(held))
        held[placed[name]] += sizes[name]
    return placed


def _border_first(brain: Brain) -> list[str]:
    """Order the modules: readers of the Brain's inputs, writers of its outputs, and all others."""
    reads = {
        name for name, ports in brain.wiring.reads.items() if any(s.part == INPUTS for p in ports.values() for s in p)
    }
    writes = {part for part, _ in brain.wiring.outputs.values()}
    return sorted(brain.modules, key=lambda name: 0 if name in reads else 1 if name in writes else 2)
