"""The names of modules and of their components: those that Outlay brings, and those that a user registers."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import TypeVar

from outlay.brain.module import BrainError
from outlay.core.suggest import did_you_mean

Cls = TypeVar("Cls", bound=type)
_CLASSES: dict[str, dict[str, type]] = {}
MODULE = "module"
_LIBRARY = (
    *("neuron", "encoders", "decoders", "reshape", "traces"),
    *("somas.leaky", "somas.exponential", "somas.izhikevich", "somas.composed"),
    *("synapses", "delays", "initializers"),
    *("learning_rules.zenke", "learning_rules.hebbian", "learning_rules.quadruplet", "learning_rules.btsp"),
)
"""The files of Outlay whose classes have names."""


@functools.cache
def library() -> tuple[ModuleType, ...]:
    """Import the modules and components that Outlay brings, which gives them their names, and return their files."""
    # Here and not above: each of these files imports `register` from this one.
    return tuple(importlib.import_module(f"outlay.brain.{name}") for name in _LIBRARY)


def register(name: str, *, kind: str = MODULE) -> Callable[[Cls], Cls]:
    """Make a class usable in files by a name.

    Args:
        name: the name in files, such as `adaptive_leaky_soma`.
        kind: what it is: `module`, or a component of a neuron: `soma`, `synapses`, `delays`, `learning_rule`; or
            `initializer`.

    Raises:
        BrainError: another class has this name.

    Example:
        >>> from outlay.brain import register, registered
        >>> @register("copy", kind="example")
        ... class Copy:
        ...     pass
        >>> registered("copy", kind="example").__name__
        'Copy'
    """

    def add(cls: Cls) -> Cls:
        there = _CLASSES.setdefault(kind, {}).setdefault(name, cls)
        # A notebook cell or a file that is run again makes the class anew: the new one takes the place of the old.
        if (there.__module__, there.__qualname__) != (cls.__module__, cls.__qualname__):
            raise BrainError(
                f"the name {name!r} is that of {there.__module__}.{there.__qualname__} already\n"
                f"  fix: another name for {cls.__module__}.{cls.__qualname__}"
            )
        _CLASSES[kind][name] = cls
        return cls

    return add


def registered(name: str, *, kind: str = MODULE) -> type:
    """Return the class that has a name.

    Raises:
        BrainError: none has.
    """
    classes = _classes(kind)
    if name not in classes:
        raise BrainError(f"there is no {kind} {name!r}\n  fix: {did_you_mean(name, registered_names(kind))}")
    return classes[name]


def registered_names(kind: str = MODULE) -> list[str]:
    """Return the names of a kind, sorted."""
    return sorted(_classes(kind))


def kind_of(base: object) -> str | None:
    """Return the kind whose classes derive from a class, such as `soma` for `Soma`; None if there is none."""
    if not isinstance(base, type):
        return None
    library()
    return next((kind for kind, named in _CLASSES.items() if any(issubclass(c, base) for c in named.values())), None)


def name_of(cls: type, *, kind: str = MODULE) -> str:
    """Return the name that a class was registered by.

    Raises:
        BrainError: it was not.
    """
    for name, there in _classes(kind).items():
        if there is cls:
            return name
    decorator = f"@register({cls.__name__.lower()!r}" + (")" if kind == MODULE else f", kind={kind!r})")
    raise BrainError(f"{cls.__qualname__} has no name in files\n  fix: {decorator} above its class")


def _classes(kind: str) -> dict[str, type]:
    library()
    return _CLASSES.get(kind, {})
