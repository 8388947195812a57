"""What the four components of a neuron have in common."""

from __future__ import annotations

from typing import Any, ClassVar

State = dict[str, Any]


class Component:
    """Delays, synapses, a soma or a learning rule: a frozen dataclass of settings, with a state of its own.

    A step takes the number of neurons from the arrays it is given, so that it works as well on some of the neurons.

    Attributes:
        by_neuron: patterns of the leaves of its state whose first dim counts the neurons; all others are about what the
            neurons read.
    """

    by_neuron: ClassVar[tuple[str, ...]] = ("**",)

    def problems(self, *, dt: float) -> list[str]:
        """What is wrong with the settings: what, and after a newline the fix."""
        return []
