"""Settings of a soma or of synapses that differ from neuron to neuron: in files a list, in a state a leaf with rows.

As a leaf they are split, padded, saved and resumed like the rest of the state, so that any layout takes them.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import jax.numpy as jnp

from outlay.brain.module import Component, State
from outlay.kit import alternatives

SETTINGS = "settings"
"""Where the state of a population has them: `settings.soma.threshold`."""
TAKE_THEM = ("soma", "synapses")
"""The components that take settings by neuron."""


def by_neuron_of(component: Component) -> dict[str, tuple[float, ...]]:
    """Return the settings of a component that have a number for each neuron, by name."""
    fields = dataclasses.fields(component) if dataclasses.is_dataclass(component) else ()
    lists = {field.name: value for field in fields if _are_numbers(value := getattr(component, field.name))}
    several = _of_several_numbers(type(component)) if lists else set()
    return {name: tuple(value) for name, value in lists.items() if name not in several}


def has_settings(components: Mapping[str, Component]) -> bool:
    """Return whether any component has settings by neuron."""
    return any(by_neuron_of(component) for name, component in components.items() if name in TAKE_THEM)


def settings_state(components: Mapping[str, Component]) -> State:
    """Return what a state has of them: float32 arrays (units,), by component and name; empty if there are none."""
    by_component = {name: by_neuron_of(component) for name, component in components.items() if name in TAKE_THEM}
    return {
        name: {setting: jnp.asarray(values, jnp.float32) for setting, values in settings.items()}
        for name, settings in by_component.items()
        if settings
    }


def with_settings(component: Any, values: Mapping[str, Any]) -> Any:
    """Return a component whose settings by neuron are these arrays."""
    if not values:
        return component
    # Not dataclasses.replace, which would call what a class does with settings as they are written.
    changed = copy.copy(component)
    for name, value in values.items():
        object.__setattr__(changed, name, value)
    return changed


def setting_problems(components: Mapping[str, Component], units: int) -> Iterator[str]:
    """Yield the problems of settings by neuron: a number that is not that of the neurons, or a component without."""
    for name, component in components.items():
        for setting, values in by_neuron_of(component).items():
            if name not in TAKE_THEM:
                yield (
                    f"{name}.{setting} has {len(values)} values, and only {' and '.join(TAKE_THEM)} take settings by "
                    "neuron\none number for all neurons, or populations of their own"
                )
            elif len(values) != units:
                yield f"{name}.{setting} has {len(values)} values\none number, or one for each of the {units} neurons"


@functools.cache
def _of_several_numbers(cls: type) -> set[str]:
    """Return the settings of a class that have several numbers for any neuron, by their types."""
    try:
        hints = typing.get_type_hints(cls)
    except NameError:  # a class within a function, with annotations that are not evaluated
        return {field.name for field in dataclasses.fields(cls) if "tuple" in str(field.type)}
    return {
        name
        for name, hint in hints.items()
        if any(tuple in (option, typing.get_origin(option)) for option in alternatives(hint))
    }


def _are_numbers(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) > 0 and all(type(one) in (int, float) for one in value)
