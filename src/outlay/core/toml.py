"""Read TOML with errors that name the line, find the lines of keys, which `tomllib` forgets, and write TOML."""

from __future__ import annotations

import collections
import errno
import io
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outlay.core.error_types import Problem
from outlay.core.input_file import open_input

KeyPath = tuple[str, ...]
"""The keys that lead to a value; a table in an array of tables is a number: `("rule", "0", "match")`."""

_HEADER = re.compile(r"\s*(?P<open>\[\[?)\s*(?P<path>[^\[\]]+?)\s*\]\]?\s*(?:#.*)?")
_KEY = re.compile(r"""\s*(?P<path>(?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")
_QUOTED = re.compile(r""""[^"]*"|'[^']*'""")
_PART = re.compile(r"""[\w-]+|"[^"]*"|'[^']*'""")


_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_MAX_CHARACTERS = 2**24  # of a file: reading a device such as /dev/zero would never end

ErrorType = Callable[[str, Sequence[Problem]], Exception]
"""Creates the error to raise, from a headline and its problem."""


def read_toml_text(path: str | os.PathLike[str], what: str, error_type: ErrorType) -> str:
    """Return the text of a file that should be TOML.

    Args:
        path: the file.
        what: what it is, for messages.
        error_type: creates the error to raise if it cannot be read.
    """
    try:
        # Some editors begin a file with a byte order mark.
        with io.TextIOWrapper(open_input(path), encoding="utf-8-sig") as file:
            text = file.read(_MAX_CHARACTERS + 1)
        if len(text) > _MAX_CHARACTERS:
            raise OSError(errno.EFBIG, f"it has more than {_MAX_CHARACTERS:,} characters")
        return text
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"not UTF-8 text: {error}"
        problem = Problem("unreadable file", os.fspath(path), str(reason), "name a TOML file that you can read")
        raise error_type(f"{what} cannot be read:", [problem]) from error


def parse_toml(text: str, name: str, error_type: ErrorType, fix: str) -> Any:
    """Parse a TOML text.

    Args:
        text: the text.
        name: the name of the file, for messages.
        error_type: creates the error to raise.
        fix: what to do about a syntax error.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        where = f"{name}:{at[1]}:{at[2]}" if at else f"{name}, at its end"
        raise error_type(f"{name} cannot be parsed:", [Problem("not TOML", where, str(error), fix)]) from error
    except RecursionError as error:
        what = "lists or tables are nested hundreds of levels deep"
        problem = Problem("nested too deeply", name, what, "use at most ten levels")
        raise error_type(f"{name} cannot be parsed:", [problem]) from error


@dataclass(frozen=True)
class TomlLines:
    """The lines of the keys and tables of one file.

    Attributes:
        name: the file, as the user named it.
        text: its content.
        lines: the line of each key and table, counted from 1.
    """

    name: str
    text: str
    lines: dict[KeyPath, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        lines: dict[KeyPath, int] = {}
        for path, line in _keys(self.text):
            lines.setdefault(path, line)
        object.__setattr__(self, "lines", lines)

    def of(self, path: KeyPath) -> str:
        """Return `file:line` of a key, or of the table around it if the key has no line of its own."""
        while path and path not in self.lines:
            path = path[:-1]
        return f"{self.name}:{self.lines[path]}" if path else self.name

    def of_text(self, key: str, is_it: Callable[[str], bool]) -> str:
        """Return `file:line` of the first text in the list under a key that satisfies `is_it`, else of the key."""
        start = self.lines.get((key,), 1)
        for number, line in enumerate(self.text.split("\n")[start - 1 :], start):
            if any(is_it(quoted[1:-1]) for quoted in _QUOTED.findall(line)):
                return f"{self.name}:{number}"
        return self.of((key,))


def _keys(text: str) -> Iterator[tuple[KeyPath, int]]:
    """Yield each key and table with its line; `[a.b.c]` is also the line of `a.b`."""
    table: KeyPath = ()
    num_tables: collections.Counter[KeyPath] = collections.Counter()
    for number, line in enumerate(text.split("\n"), 1):
        if header := _HEADER.fullmatch(line):
            is_array = header["open"] == "[["
            table = ()
            parts = _parts(header["path"])
            for i, part in enumerate(parts):
                table = (*table, part)
                yield table, number
                num_tables[table] += is_array and i == len(parts) - 1
                # Below an array of tables a header refers to the most recent table of the array.
                if num_tables[table]:
                    table = (*table, str(num_tables[table] - 1))
                    yield table, number
        elif key := _KEY.match(line):
            parts = _parts(key["path"])
            for length in range(1, len(parts) + 1):
                yield table + parts[:length], number


def _parts(path: str) -> KeyPath:
    return tuple(part.strip("\"'") for part in _PART.findall(path))


def toml_table(name: str, table: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a table: its own values, then the tables in it."""
    plain = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    if plain or not table:
        yield f"[{name}]"
    for key, value in plain.items():
        yield toml_line(key, value)
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from toml_table(f"{name}.{toml_key(key)}", value)


def toml_line(key: str, value: Any) -> str:
    """Write a key and its value; a table within a value is written on the same line.

    >>> toml_line("connections", ["a -> b", {"delay": 0.5, "is on": True}])
    'connections = ["a -> b", {delay = 0.5, "is on" = true}]'
    """
    return f"{toml_key(key)} = {toml_value(value)}"


def toml_key(name: str) -> str:
    """Write a key, in quotes where it needs them."""
    return name if _BARE_KEY.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def toml_value(value: Any) -> str:
    """Write a value."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(toml_line(key, item) for key, item in value.items()) + "}"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    # str is the shortest text that reads back as the same number. JSON writes the others as TOML does.
    return str(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
