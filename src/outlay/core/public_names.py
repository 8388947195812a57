"""The public names of a package: imported when first used; a name that is not there is answered with what to write."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NoReturn

import lazy_loader


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
