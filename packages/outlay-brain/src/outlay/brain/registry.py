"""Register modules and components by name, Outlay's and users'."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import TypeVar

from outlay.brain.module import BrainError
from outlay.kit import did_you_mean

Cls = TypeVar("Cls", bound=type)
_CLASSES: dict[str, dict[str, type]] = {}
MODULE = "module"
_LIBRARY = (
    *("neuron", "encoders", "decoders", "reshape", "traces"),
    *("somas.leaky", "somas.exponential", "somas.izhikevich", "somas.composed", "somas.lif"),
    *("synapses", "delays", "initializers"),
    *("learning_rules.zenke", "learning_rules.hebbian", "learning_rules.quadruplet", "learning_rules.btsp"),
)
"""Outlay's files with registered classes."""


@functools.cache
def library() -> tuple[ModuleType, ...]:
    """Import Outlay's modules and components, which registers them, and return their files."""
    # Not at module level: each of these files imports `register` from this one.
    return tuple(importlib.import_module(f"outlay.brain.{name}") for name in _LIBRARY)


def is_outlays(settings: object) -> bool:
    """Return whether a module or component is of a class of Outlay's, and of none that derives from one."""
    return type(settings).__module__ in {file.__name__ for file in library()}


def register(name: str, *, kind: str = MODULE) -> Callable[[Cls], Cls]:
    """Register a class under a name, for use in files.

    Args:
        name: the name in files, such as `adaptive_leaky_soma`.
        kind: `module`; a component of a neuron: `soma`, `synapses`, `delays` or `learning_rule`; or `initializer`.

    Raises:
        BrainError: another class already has this name.

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
        # A notebook cell that runs again defines the class again: the new class replaces the old one.
        if (there.__module__, there.__qualname__) != (cls.__module__, cls.__qualname__):
            raise BrainError(
                f"the name {name!r} is that of {there.__module__}.{there.__qualname__} already\n"
                f"  fix: another name for {cls.__module__}.{cls.__qualname__}"
            )
        _CLASSES[kind][name] = cls
        return cls

    return add


def registered(name: str, *, kind: str = MODULE) -> type:
    """Return the class with a name.

    Raises:
        BrainError: there is none.
    """
    classes = _classes(kind)
    if name not in classes:
        raise BrainError(f"there is no {kind} {name!r}\n  fix: {did_you_mean(name, registered_names(kind))}")
    return classes[name]


def registered_names(kind: str = MODULE) -> list[str]:
    """Return the registered names of a kind, sorted."""
    return sorted(_classes(kind))


def kind_of(base: object) -> str | None:
    """Return the kind whose classes derive from a class, such as `soma` for `Soma`; None if there is none."""
    if not isinstance(base, type):
        return None
    # Otherwise only those classes were registered whose files are imported already.
    library()
    return next((kind for kind, named in _CLASSES.items() if any(issubclass(c, base) for c in named.values())), None)


def name_of(cls: type, *, kind: str = MODULE) -> str:
    """Return the name under which a class was registered.

    Raises:
        BrainError: it was not registered.
    """
    for name, there in _classes(kind).items():
        if there is cls:
            return name
    decorator = f"@register({cls.__name__.lower()!r}" + (")" if kind == MODULE else f", kind={kind!r})")
    raise BrainError(f"{cls.__qualname__} has no name in files\n  fix: {decorator} above its class")


def _classes(kind: str) -> dict[str, type]:
    library()
    return _CLASSES.get(kind, {})
