"""Every public value prints as one short line where nobody asked for more: in a REPL, a debugger, a traceback."""

import dataclasses
import enum
import inspect
import operator
import typing
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from jax.sharding import PartitionSpec
from tests.architecture.test_public_api import names_with_applications
from tests.architecture.test_returned_types import _hints

import outlay
from outlay.core.one_line import OneLine

SHORT = (bool, int, float, complex, str, bytes, type(None), enum.Enum, PurePath)


def test_a_public_value_that_can_hold_much_has_a_repr_of_one_line():
    classes = {name: thing for name, thing in _public_classes() if dataclasses.is_dataclass(thing)}
    endless = [name for name, kind in classes.items() if not _is_bounded(kind)]
    assert len(classes) > 80
    assert not endless


def _public_classes() -> Iterator[tuple[str, type]]:
    for name in names_with_applications():
        thing = operator.attrgetter(name)(outlay)
        if inspect.isclass(thing):
            yield name, thing


def _is_bounded(kind: Any) -> bool:
    """Whether no value of a type has a long `repr`: a single word or number, or a fixed number of those."""
    if typing.get_origin(kind) is typing.Literal:
        return True
    if parts := typing.get_args(kind):
        is_fixed = typing.get_origin(kind) is not tuple or Ellipsis not in parts
        return is_fixed and typing.get_origin(kind) not in (list, dict) and all(map(_is_bounded, parts))
    if not inspect.isclass(kind):
        return False
    if issubclass(kind, (OneLine, *SHORT)) or kind is PartitionSpec:
        return True
    if not dataclasses.is_dataclass(kind):
        return False
    hints = _hints(kind)
    return all(_is_bounded(hints[field.name]) for field in dataclasses.fields(kind) if field.repr)
