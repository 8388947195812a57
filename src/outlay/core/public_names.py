"""The public names of a package: imported when first used, and called as they are declared.

A name that is not there, and a call that does not fit, are answered with what to write, which is worked out only then.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NoReturn, ParamSpec, TypeVar

import lazy_loader

from outlay.core.error_types import ArgumentError

Params = ParamSpec("Params")
T = TypeVar("T")


def public_names(
    package: str, file: str, applications: Mapping[str, str] | None = None, inside: str | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package whose names stand in the `.pyi` beside it.

    Args:
        package: the name of the package.
        file: its `__init__.py`.
        inside: the package in which the names are defined, for a module whose `.pyi` lists those of its neighbours.
        applications: packages in it that other distributions bring, and the extra that installs each.
    """
    load, listed, names = lazy_loader.attach_stub(inside or package, file)
    extras = applications or {}
    installed = [name for name in extras if find_spec(f"{package}.{name}")]
    names = [*names, *installed]

    def find(name: str) -> Any:
        if name in installed:
            return import_module(f"{package}.{name}")
        if name in names:
            return load(name)
        if name in extras:
            raise AttributeError(f"{package}.{name} is not installed\n  fix: pip install '{package}[{extras[name]}]'")
        if name == "__version__" and package == "outlay":
            from importlib.metadata import version

            return version(package)
        if name.startswith("_"):  # Python, a debugger or a notebook asks whether there is one
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        raise AttributeError(_no_such_name(package, name, names))

    module = sys.modules[package]
    module.__class__ = type("PublicNames", (type(module),), {"__call__": _called})
    return find, lambda: [*listed(), *installed], names


def _no_such_name(package: str, name: str, names: list[str]) -> str:
    from outlay.core.guesses import NAMES
    from outlay.core.suggest import did_you_mean

    what = f"module {package!r} has no attribute {name!r}"
    if package == "outlay" and name in NAMES:
        return f"{what}\n  fix: {NAMES[name]}"
    if package != "outlay" and name in sys.modules["outlay"].__all__:
        return f"{what}\n  fix: outlay.{name}"
    folders = names if hasattr(sys.modules[package], "__path__") else []  # a module has none
    if below := [each for each in folders if _has(f"{package}.{each}", name)]:
        return f"{what}\n  fix: {package}.{below[0]}.{name}"
    return f"{what}: {did_you_mean(name, names)}"


def _has(package: str, name: str) -> bool:
    """Return whether a package of this name lists a public name; packages load nothing but their list."""
    spec = find_spec(package)
    return bool(spec and spec.submodule_search_locations and name in getattr(import_module(package), "__all__", ()))


def _called(module: Any, *_: Any, **__: Any) -> NoReturn:
    from outlay.core.guesses import CALLED

    line = CALLED.get(module.__name__, f"a name in it: dir({module.__name__}) lists them")
    raise TypeError(f"{module.__name__} is a module, not a function\n  fix: {line}")


def called_as(example: str, **renamed: str) -> Callable[[Callable[Params, T]], Callable[Params, T]]:
    """Return a decorator: a call that does not fit the function's parameters raises an error with the call to write.

    Nothing is checked before the call: Python's own refusal is replaced.

    Args:
        example: a call that works.
        **renamed: parameters that other libraries have, each with what to write here.

    >>> @called_as("double(number=2)", value="number=")
    ... def double(*, number):
    ...     return 2 * number
    >>> double(value=2)
    Traceback (most recent call last):
    ...
    outlay.errors.ArgumentError: double() has no parameter 'value'
      fix: number=
    """

    def decorate(function: Callable[Params, T]) -> Callable[Params, T]:
        @functools.wraps(function)
        def call(*args: Params.args, **kwargs: Params.kwargs) -> T:
            try:
                return function(*args, **kwargs)
            except TypeError as error:
                # Deeper than this frame alone, the call was right and something in it failed.
                if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                    raise
                raise ArgumentError(refusal(function, args, kwargs, example, renamed, str(error))) from None

        return call

    return decorate


def refusal(
    function: Callable[..., object],
    args: tuple[object, ...],
    kwargs: dict[str, object],
    example: str,
    renamed: dict[str, str],
    python: str,
) -> str:
    """Return what is wrong with a call, and the call to write; `python` are Python's own words."""
    from outlay.core.suggest import did_you_mean

    name = function.__qualname__.removesuffix(".__init__").rpartition("<locals>.")[2]
    parameters = dict(inspect.signature(function).parameters)
    args = args[1:] if parameters.pop("self", None) else args
    if unknown := [each for each in kwargs if each not in parameters]:
        fixes = [renamed.get(each) or did_you_mean(each, parameters) for each in unknown]
        return f"{name}() has no parameter {', '.join(map(repr, unknown))}\n  fix: {'; '.join(fixes)}"
    most = sum(each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) for each in parameters.values())
    if len(args) > most:
        given = f"{len(args)} arguments were given by position" if len(args) > 1 else "1 argument was given by position"
        return f"{name}() takes {most or 'none'} by position, and {given}\n  fix: {example}"
    missing = [
        each.name
        for each in [*parameters.values()][len(args) :]
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    lacks = ", ".join(each for each in missing if each not in kwargs)
    return f"{name}() lacks {lacks}\n  fix: {example}" if lacks else f"{python}\n  fix: {example}"
