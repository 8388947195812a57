"""The `name=value, name=value` that follows an instruction's operands, or a module's name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

# Every repetition is possessive (`*+`): what was matched is never tried another way, so odd text costs no more time.
QUOTED = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?+'
_NAME = re.compile(r"[,\s]*+([\w.\-]++)=")
_BARE = re.compile(r"[^\s,{}%]++")
_MARK = re.compile(QUOTED + r"|[\[\](){},]")


class Attributes(Mapping[str, str]):
    """The attributes of an instruction, taken apart when first asked for: most never are."""

    __slots__ = ("_text", "_values")

    def __init__(self, text: str) -> None:
        self._text = text
        self._values: dict[str, str] | None = None

    def _read(self) -> dict[str, str]:
        if self._values is None:
            self._values = read_attributes(self._text)
        return self._values

    def __getitem__(self, name: str) -> str:
        if name not in self:
            raise KeyError(name)
        return self._read()[name]

    def __contains__(self, name: object) -> bool:
        # Most questions are for what is not there: that needs no taking apart.
        if self._values is None and f"{name}=" not in self._text:
            return False
        return name in self._read()

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def __repr__(self) -> str:
        return repr(self._read())


def read_attributes(text: str) -> dict[str, str]:
    """The attributes by name, values as they stand in the text.

    Examples:
        >>> read_attributes(', channel_id=1, replica_groups={{0,1},{2,3}}, metadata={op_name="f(x, y={1})"}')
        {'channel_id': '1', 'replica_groups': '{{0,1},{2,3}}', 'metadata': '{op_name="f(x, y={1})"}'}
    """
    values: dict[str, str] = {}
    at = 0
    while at < len(text):
        name = _NAME.match(text, at)
        start = name.end() if name else at
        end = _value_end(text, start)
        if name:
            values[name[1]] = text[start:end].rstrip()
        at = end + 1
    return values


def _value_end(text: str, start: int) -> int:
    """Where the comma stands that ends the value: outside of all brackets and quotes."""
    depth = 0
    for mark in _MARK.finditer(text, start):
        sign = mark[0]
        if sign == "," and depth == 0:
            return mark.start()
        if sign in "([{":
            depth += 1
        elif sign in ")]}":
            depth -= 1
    return len(text)


def closing(text: str, start: int) -> int:
    """Where the parenthesis is closed that opens at `start`; -1 where it is not.

    Examples:
        >>> closing('f(a, (b), ")")', 1)
        13
    """
    depth = 0
    for mark in _MARK.finditer(text, start):
        sign = mark[0]
        if sign == "(":
            depth += 1
        elif sign == ")":
            depth -= 1
            if depth == 0:
                return mark.start()
    return -1


def names_in(text: str) -> tuple[str, ...]:
    """The names in a value such as `{%body.1, %body.2}` or `%body.1`.

    Examples:
        >>> names_in("{%body.1, %body.2}")
        ('body.1', 'body.2')
    """
    return tuple(_BARE.findall(text))
