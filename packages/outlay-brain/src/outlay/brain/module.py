"""The base class of a Brain's modules: settings, a state, and a step from input ports to output ports.

The components of a neuron have the same form. Nothing here imports JAX, so that the errors can be imported without it.
"""

from __future__ import annotations

import abc
import dataclasses
import math
import reprlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from outlay.errors import OutlayError
from outlay.kit import OneLine

if TYPE_CHECKING:
    import jax

MS_PER_S = 1000.0
State = dict[str, Any]
Shape = tuple[int, ...]
Kind = Literal["spikes", "values", "graded"]


class BrainError(OutlayError, ValueError):
    """Raised if a Brain cannot be built, read or run; each faulty module, port or setting is a problem of its own."""

    __module__ = "outlay.errors"  # where users catch it


class ComponentError(BrainError):
    """Raised if a component of a neuron does something else than a neuron needs; the Brain adds which neuron it is.

    Attributes:
        component: the component, such as `soma`.
        what: what is wrong.
        fix: the edit that mends it.
    """

    def __init__(self, component: str, what: str, fix: str) -> None:
        super().__init__(f"{component}: {what}\n  fix: {fix}")
        self.component, self.what, self.fix = component, what, fix


@dataclass(frozen=True)
class Port(OneLine):
    """A port, through which a module reads or writes one array per step.

    Attributes:
        kind: `spikes` (int8: +1, -1 from an inhibitory neuron, or 0) or `values` (numbers of the Brain's dtype). An
            input may be `graded`: it reads spikes and values alike, as numbers of the Brain's dtype.
        shape: its shape; None for an input of any shape.
        unit: the unit of the values, such as `pA`.
    """

    kind: Kind
    shape: Shape | None = None
    unit: str = ""

    def __str__(self) -> str:
        shape = "any shape" if self.shape is None else str(self.shape)
        return f"{self.kind} {shape}" + (f" in {self.unit}" if self.unit else "")


class Module(OneLine, abc.ABC):
    """A part of a Brain. A subclass is a frozen dataclass whose fields are the constant settings.

    A module does not know where it runs. Everything that varies in time or was drawn at random is in its state, a
    nested dictionary of arrays.

    Attributes:
        by_neuron: patterns of the state leaves whose first dim counts the module's own neurons. The step must then work
            for any subset of these neurons, and returns outputs for the same subset. Empty for a module that only works
            as a whole.
    """

    by_neuron: ClassVar[tuple[str, ...]] = ()

    @property
    def makes_rows(self) -> bool:
        """Whether `init_rows` can make the rows of some neurons alone, of a state that is split by neuron."""
        return False

    def init_rows(
        self, key: jax.Array, shapes: Mapping[str, Shape], numbers: jax.Array, *, dt: float, dtype: Any
    ) -> State:
        """Return the initial state with the rows of some neurons, if `makes_rows`.

        Args:
            key: as for `init`.
            shapes: as for `init`.
            numbers: the numbers of the neurons, in the order of the rows.
            dt: as for `init`.
            dtype: as for `init`.
        """
        raise NotImplementedError

    @abc.abstractmethod
    def inputs(self) -> Mapping[str, Port]:
        """Return the input ports; all of them must be connected."""

    @abc.abstractmethod
    def outputs(self, shapes: Mapping[str, Shape]) -> Mapping[str, Port]:
        """Return the output ports.

        Args:
            shapes: the known shapes of the inputs. A `KeyError` tells which shape is needed first.
        """

    @abc.abstractmethod
    def init(self, key: jax.Array, shapes: Mapping[str, Shape], *, dt: float, dtype: Any) -> State:
        """Return the initial state.

        Args:
            key: the module's own PRNG key.
            shapes: the shapes of all inputs.
            dt: the duration of a step in ms.
            dtype: the dtype of potentials, kernels, traces and currents.
        """

    @abc.abstractmethod
    def step(self, state: State, inputs: Mapping[str, jax.Array], *, dt: float) -> tuple[State, dict[str, jax.Array]]:
        """Advance the state by one step of dt ms.

        Args:
            state: the state before it; do not change it in place.
            inputs: one array per port. Several sources of a port are flattened and concatenated.
            dt: the duration of a step in ms.

        Returns:
            The state after the step, and one array for each output port.
        """

    def signs(self, state: State, read: Mapping[str, jax.Array]) -> Mapping[str, jax.Array]:
        """Return which outputs belong to inhibitory neurons, by port; omit ports without inhibitory neurons.

        Args:
            state: the initial state.
            read: for each input port of spikes, which sources are inhibitory neurons, (sources,).
        """
        return {}

    def with_signs(self, state: State, read: Mapping[str, jax.Array]) -> State:
        """Return the initial state, with the signs of the sources added if the module needs them.

        Args:
            state: the state returned by `init`.
            read: as for `signs`.
        """
        return state

    def problems(self, *, dt: float) -> list[str]:
        """Return the problems of the settings; each sentence names the setting, its value and the fix."""
        return []


class Component(OneLine):
    """A component of a neuron: delays, synapses, a soma or a learning rule. A frozen dataclass with a state of its own.

    A step takes the number of neurons from its arrays, so that it works for any subset of the neurons.

    Attributes:
        by_neuron: patterns of the state leaves whose first dim counts the neurons; all other leaves belong to their
            inputs.
    """

    by_neuron: ClassVar[tuple[str, ...]] = ("**",)

    def __post_init__(self) -> None:
        """Store an array or a list of settings as a tuple, so that components can be compared and hashed."""
        for field in dataclasses.fields(self) if dataclasses.is_dataclass(self) else ():
            value = getattr(self, field.name)
            numbers = value.tolist() if hasattr(value, "tolist") and getattr(value, "ndim", 0) == 1 else value
            if isinstance(numbers, list):
                object.__setattr__(self, field.name, tuple(numbers))

    def problems(self, *, dt: float) -> list[str]:
        """Yield the problems of the settings: each is a sentence, a newline, and the fix."""
        return []


def each_setting(settings: Any, above: str = "") -> Iterator[tuple[str, dataclasses.Field, Any]]:
    """Yield path, field and value of each setting, also of components, which are settings too.

    Args:
        settings: a module or a component.
        above: the path of a component, with a dot at its end.
    """
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        yield above + field.name, field, value
        if dataclasses.is_dataclass(value):
            yield from each_setting(value, f"{above}{field.name}.")


def split_message(sentences: object) -> tuple[str, str]:
    """Split what a module says of a setting, or an error about it, into what is wrong and the fix after a newline."""
    what, _, fix = str(sentences).partition("\n")
    return what, fix.strip().removeprefix("fix: ")


def not_positive(settings: Any, *names: str) -> list[str]:
    """Return a sentence for each of these settings that is not a positive, finite number."""
    bad = [name for name in names if not _each(getattr(settings, name), lambda value: value > 0)]
    return [_sentence(settings, name, "a positive number") for name in bad]


def negative(settings: Any, *names: str) -> list[str]:
    """Return a sentence for each of these settings that is not finite, or below 0."""
    bad = [name for name in names if not _each(getattr(settings, name), lambda value: value >= 0)]
    return [_sentence(settings, name, "0 or a positive number") for name in bad]


def _sentence(settings: Any, name: str, allowed: str) -> str:
    field = next(field for field in dataclasses.fields(settings) if field.name == name)
    example = 1 if field.default is dataclasses.MISSING else field.default
    return f"{name} is {_with_unit(getattr(settings, name), field)}\n{allowed}, such as {_with_unit(example, field)}"


def _with_unit(value: Any, field: dataclasses.Field) -> str:
    """Write a setting's value with its unit."""
    text = f"{value:g}" if isinstance(value, int | float) else reprlib.repr(value)
    return f"{text} {field.metadata.get('unit', '')}".rstrip()


def _each(value: Any, is_allowed: Callable[[Any], bool]) -> bool:
    """Return whether a setting, or each of one by neuron, is finite and allowed."""
    values = value if isinstance(value, tuple | list) and value else (value,)
    return all(_is_finite(one) and is_allowed(one) for one in values)


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) < math.inf  # integers too large for a float overflow, too
