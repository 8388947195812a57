"""What a public function returns can be named by whoever calls it: every type of it is a public name."""

import ast
import dataclasses
import functools
import importlib
import inspect
import operator
import sys
import typing
from collections.abc import Callable, Iterator
from typing import Any

import jax
from tests.architecture.test_public_api import names_with_applications

import outlay


def test_every_type_that_a_public_name_returns_is_public():
    named = {name: operator.attrgetter(name)(outlay) for name in names_with_applications()}
    things = {name: thing for name, thing in named.items() if inspect.isclass(thing) or inspect.isroutine(thing)}
    public, reached = set(things.values()), list(things.items())
    missing: dict[type, str] = {}
    while reached:
        name, thing = reached.pop()
        for where, annotation in _returned(name, thing):
            for kind in _classes(annotation):
                if kind.__module__.startswith("outlay.") and kind not in public | set(missing):
                    missing[kind] = where
                    reached.append((where, kind))
    assert len(things) > 150
    assert not [f"{kind.__module__}.{kind.__name__}, of {where}" for kind, where in missing.items()]


def _returned(name: str, thing: Any) -> Iterator[tuple[str, Any]]:
    """What a function returns, or the attributes of a class hold and its methods return."""
    if not inspect.isclass(thing):
        yield f"{name}()", _hints(inspect.unwrap(thing)).get("return")
        return
    if issubclass(thing, BaseException):
        return
    if dataclasses.is_dataclass(thing):
        for field in dataclasses.fields(thing):
            if not field.name.startswith("_"):
                yield f"{name}.{field.name}", _hints(thing).get(field.name)
    for attribute, value in inspect.getmembers_static(thing):
        function = _function_of(value)
        own = not attribute.startswith("_") or attribute in ("__call__", "__getitem__")
        if own and function is not None and function.__module__.startswith("outlay."):
            yield f"{name}.{attribute}", _hints(function).get("return")


def _function_of(value: Any) -> Callable[..., Any] | None:
    if isinstance(value, property):
        return value.fget
    if isinstance(value, functools.cached_property):
        return value.func
    value = inspect.unwrap(value.__func__ if isinstance(value, classmethod | staticmethod) else value)
    return value if inspect.isfunction(value) else None


def _hints(thing: Any) -> dict[str, Any]:
    module = sys.modules[thing.__module__]
    # A type alias of another module may name a class of that module, such as "Choice" in Policy.
    names = {"jax": jax, "Choice": outlay.layout.Choice, **_imported_for_types(module.__file__ or "")}
    return typing.get_type_hints(thing, localns=names)


@functools.cache
def _imported_for_types(file: str) -> dict[str, Any]:
    """What a module imports under `if TYPE_CHECKING:`."""
    with open(file, encoding="utf-8") as source:
        tree = ast.parse(source.read())
    blocks = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return {
        alias.asname or alias.name: getattr(importlib.import_module(node.module or ""), alias.name)
        for node in imports
        for alias in node.names
    }


def _classes(annotation: Any) -> Iterator[type]:
    """The classes in an annotation, such as `A` and `B` in `tuple[A, ...] | B`."""
    if inspect.isclass(annotation) and not typing.get_origin(annotation):
        yield annotation
    for part in typing.get_args(annotation):
        for each in part if isinstance(part, list) else [part]:
            yield from _classes(each)
