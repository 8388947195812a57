"""What a module of a Brain is: settings, a state, and a step that reads ports and writes ports."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any, ClassVar

import jax

from outlay.brain.port import Port, Shape

State = dict[str, Any]


class Module(abc.ABC):
    """One part of a Brain. A subclass is a frozen dataclass: its fields are its settings, the same in every step.

    It knows nothing of where it runs. What varies in time, and what was drawn at random, is in its state: a dictionary
    of arrays, and of dictionaries of them.

    Attributes:
        by_neuron: patterns of the leaves of the state whose first dim counts the module's own neurons, and whose step
            works as well on some of these neurons as on all; its outputs are then about the same neurons. Empty for a
            module that only works as a whole.
    """

    by_neuron: ClassVar[tuple[str, ...]] = ()

    @abc.abstractmethod
    def inputs(self) -> Mapping[str, Port]:
        """The ports it reads; all must be connected."""

    @abc.abstractmethod
    def outputs(self, shapes: Mapping[str, Shape]) -> Mapping[str, Port]:
        """The ports it writes.

        Args:
            shapes: of its inputs, as far as they are known; a `KeyError` says which one it has to know first.
        """

    @abc.abstractmethod
    def init(self, key: jax.Array, shapes: Mapping[str, Shape], *, dt: float, dtype: Any) -> State:
        """The state before the first step.

        Args:
            key: its own PRNG key.
            shapes: of all its inputs.
            dt: the time of one step in ms.
            dtype: of potentials, kernels, traces and currents.
        """

    @abc.abstractmethod
    def step(self, state: State, inputs: Mapping[str, jax.Array], *, dt: float) -> tuple[State, dict[str, jax.Array]]:
        """One step of dt ms.

        Args:
            state: the state before it; never changed in place.
            inputs: one array a port. Several sources of a port arrive flattened and concatenated.
            dt: the time of one step in ms.

        Returns:
            The state after it, and one array for each output port.
        """

    def signs(self, state: State, read: Mapping[str, jax.Array]) -> Mapping[str, jax.Array]:
        """Which of the spikes that it writes are of inhibitory neurons, by port; none of those left out.

        Args:
            state: before the first step.
            read: for each port of spikes that it reads, which of them are of inhibitory neurons, (sources,).
        """
        return {}

    def told_signs(self, state: State, read: Mapping[str, jax.Array]) -> State:
        """The state before the first step of a module that knows whom it reads.

        Args:
            state: as `init` returned it.
            read: as for `signs`.
        """
        return state

    def problems(self, *, dt: float) -> list[str]:
        """What is wrong with the settings, one sentence each that names the setting, its value and the fix."""
        return []
