"""Values whose `repr` is one short line, however much they hold: a REPL, a debugger and a notebook print it unasked."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePath
from typing import Any

_MAX_LINE = 600
"""Characters of a `repr`."""

_MAX_FIELD = 120
"""Characters of one field in it."""

_MAX_ITEMS = 8
"""Items of a collection that are looked at."""

_SPECS = ("PartitionSpec", "P")
"""The names of the class of specs, by version of JAX, which is not imported here."""

_PLAIN = (type(None), bool, int, float, complex, str, bytes, enum.Enum, PurePath)


class OneLine:
    """A base for dataclasses that can hold much: `repr` is one line, with long collections counted and arrays by type.

    >>> @dataclasses.dataclass
    ... class Leaf(OneLine):
    ...     path: str
    ...     devices: tuple[int, ...]
    >>> Leaf("up", (0, 1)), Leaf("down", tuple(range(256)))
    (Leaf(path='up', devices=(0, 1)), Leaf(path='down', devices=(0, 1, 2, 3, 4, 5, 6, 7, ... 256 in all)))
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__repr__" not in vars(cls):
            # In the class itself, or `@dataclass` would write one there that shows everything.
            cls.__repr__ = OneLine.__repr__

    def _in_short(self) -> str:
        """Return what it is, its sizes and its verdict in a few words; by default its fields are shown instead."""
        return ""

    def __repr__(self) -> str:
        if words := self._in_short():
            return _cut(f"<{type(self).__name__}: {words.splitlines()[0]}>", _MAX_LINE)
        fields = dataclasses.fields(self) if dataclasses.is_dataclass(self) else ()
        texts = [f"{field.name}={one_line(getattr(self, field.name))}" for field in fields if field.repr]
        return _cut(f"{type(self).__name__}({', '.join(texts)})", _MAX_LINE)


def one_line(value: Any) -> str:
    """Return a value in at most a line: what is short as `repr` has it, else its type and its size.

    >>> one_line([1, 2]), one_line(jnp.ones((8, 4))), one_line("x" * 1000)[:5]
    ('[1, 2]', 'float32[8, 4]', "'xxxx")
    """
    return _cut(_written(value), _MAX_FIELD)


def _written(value: Any) -> str:
    if isinstance(value, str | bytes):
        return repr(value[:_MAX_FIELD])
    if isinstance(value, _PLAIN) or type(value).__name__ in _SPECS:
        return repr(value)
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, Mapping) and type(value).__module__ == "builtins":
        return _items(value.items(), len(value), "{}", lambda item: f"{item[0]!r:.60}: {one_line(item[1])}")
    if type(value) in (tuple, list, set, frozenset):
        edges = {tuple: "()", list: "[]"}.get(type(value), "{}")
        text = _items(value, len(value), edges, one_line)
        return text[:-1] + ",)" if edges == "()" and len(value) == 1 else text
    if isinstance(value, OneLine):
        return repr(value)
    name = getattr(value, "__qualname__", None)
    return name if isinstance(name, str) else f"<{type(value).__name__}>"


def _items(items: Iterable[Any], num: int, edges: str, write: Callable[[Any], str]) -> str:
    """Write the first items, as many as have room, and the number of all if some are left out."""
    texts, room = [], _MAX_FIELD - 24
    for item in items:
        texts.append(write(item))
        room -= len(texts[-1]) + 2
        if len(texts) == _MAX_ITEMS or room < 0:
            break
    if room < 0 and num > 1:
        texts.pop()
    if len(texts) < num:
        texts.append(f"... {num:,} in all")
    return f"{edges[0]}{', '.join(texts)}{edges[1]}"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 4]}...{text[-1]}"
