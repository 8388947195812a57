"""What a module of a Brain is: settings, a state, and a step that reads ports and writes ports.

The four components of a neuron are described in the same way. Nothing here imports JAX, so that the errors can be
imported without it.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from outlay.core.error_types import OutlayError

if TYPE_CHECKING:
    import jax

State = dict[str, Any]
Shape = tuple[int, ...]
Kind = Literal["spikes", "values"]


class BrainError(OutlayError, ValueError):
    """A Brain that cannot be built, read from its file, or run: each module, port or setting at fault is a problem."""


@dataclass(frozen=True)
class Port:
    """A named place where a module reads or writes one array a step.

    Attributes:
        kind: `spikes` (int8: +1, -1 from an inhibitory neuron, or 0) or `values` (numbers of the Brain's dtype).
        shape: its shape; None where an input takes any.
        unit: of the values, such as `pA`.
    """

    kind: Kind
    shape: Shape | None = None
    unit: str = ""

    def __str__(self) -> str:
        shape = "any shape" if self.shape is None else str(self.shape)
        return f"{self.kind} {shape}" + (f" in {self.unit}" if self.unit else "")


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
        """Which of the spikes that it writes are of inhibitory neurons, by port; ports left out have none.

        Args:
            state: before the first step.
            read: for each port of spikes that it reads, which of them are of inhibitory neurons, (sources,).
        """
        return {}

    def with_signs(self, state: State, read: Mapping[str, jax.Array]) -> State:
        """The state before the first step, with what the module needs to know of the signs of the spikes that it reads.

        Args:
            state: as `init` returned it.
            read: as for `signs`.
        """
        return state

    def problems(self, *, dt: float) -> list[str]:
        """What is wrong with the settings, one sentence each that names the setting, its value and the fix."""
        return []


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


def not_positive(settings: Any, *names: str) -> list[str]:
    """A sentence for each of these settings that is no positive, finite number."""
    bad = [name for name in names if not (_is_finite(getattr(settings, name)) and getattr(settings, name) > 0)]
    return [_sentence(settings, name, "a positive number") for name in bad]


def negative(settings: Any, *names: str) -> list[str]:
    """A sentence for each of these settings that is no finite number, or below 0."""
    bad = [name for name in names if not (_is_finite(getattr(settings, name)) and getattr(settings, name) >= 0)]
    return [_sentence(settings, name, "0 or a positive number") for name in bad]


def _sentence(settings: Any, name: str, allowed: str) -> str:
    field = next(field for field in dataclasses.fields(settings) if field.name == name)
    example = 1 if field.default is dataclasses.MISSING else field.default
    return f"{name} is {_with_unit(getattr(settings, name), field)}\n{allowed}, such as {_with_unit(example, field)}"


def _with_unit(value: Any, field: dataclasses.Field) -> str:
    """A setting's value as people write it."""
    text = f"{value:g}" if isinstance(value, int | float) else repr(value)
    return f"{text} {field.metadata.get('unit', '')}".rstrip()


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) < math.inf  # whole numbers too large for a float as well
