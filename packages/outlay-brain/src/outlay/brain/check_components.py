"""Check the components of a neuron: what they are, and what their methods return."""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax.numpy as jnp

from outlay.brain.module import ComponentError
from outlay.kit import dtype_and_shape


def kind_problems(given: Mapping[str, Any], bases: Mapping[str, type]) -> Iterator[str]:
    """Yield a sentence for each component that is of another kind, such as a class, or synapses for a soma.

    Args:
        given: the components by name.
        bases: the class that each must derive from.
    """
    for name, component in given.items():
        base = bases[name]
        if isinstance(component, base):
            continue
        if inspect.isclass(component):
            yield f"{name} is the class {component.__name__}\none of it: {name}={component.__name__}()"
        else:
            yield f"{name} is {reprlib.repr(component)}, which is no {base.__name__}\n{_a(base)}, such as its default"


def checked_pair(component: str, what: Any, returned: Any, second: str) -> tuple[Any, Any]:
    """Return the two values that a component's step returned.

    Raises:
        ComponentError: it returned something else.
    """
    if not (isinstance(returned, tuple) and len(returned) == 2):
        raise ComponentError(
            component, f"step of {type(what).__name__} returned {_kind(returned)}", f"return state, {second}"
        )
    return returned


def check_spikes_of(soma: Any, spikes: Any, units: int) -> None:
    """Raise unless a soma says by a boolean for each neuron whether it spiked.

    Raises:
        ComponentError: it returned numbers, or another number of them.
    """
    is_array = hasattr(spikes, "dtype") and hasattr(spikes, "shape")
    if not is_array or spikes.dtype != jnp.bool_ or spikes.shape != (units,):
        made = dtype_and_shape(spikes) if is_array else _kind(spikes)
        raise ComponentError(
            "soma",
            f"step of {type(soma).__name__} returned {made} as spikes",
            f"which neurons spiked, bool[{units}], such as potential > threshold",
        )


def check_current(synapses: Any, current: Any, units: int) -> None:
    """Raise unless synapses return a current for each neuron.

    Raises:
        ComponentError: they return something else.
    """
    if getattr(current, "shape", None) != (units,):
        made = dtype_and_shape(current) if hasattr(current, "dtype") else _kind(current)
        what = f"{type(synapses).__name__} returned {made} as current"
        raise ComponentError("synapses", what, f"the current into each neuron, of shape ({units},)")


def check_kernel(initializer: Any, kernel: Any, shape: tuple[int, int]) -> None:
    """Raise unless an initial kernel has a number for each pair.

    Raises:
        ComponentError: it has another shape.
    """
    if getattr(kernel, "shape", None) != shape:
        made = f"shape {kernel.shape}" if hasattr(kernel, "shape") else _kind(kernel)
        raise ComponentError(
            "synapses.kernel",
            f"{type(initializer).__name__} returned {made}, and the kernel is {shape}",
            f"an array of shape {shape}: post-synaptic, pre-synaptic neurons",
        )


def _kind(value: Any) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return "None" if value is None else f"a {type(value).__name__}"


def _a(base: type) -> str:
    return f"{'an' if base.__name__[0] in 'AEIOU' else 'a'} {base.__name__}"
