"""Parse TOML with errors that name the line, and find the lines of keys, which `tomllib` forgets."""

from __future__ import annotations

import collections
import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from outlay.core.error_types import Problem

Path = tuple[str, ...]
"""The keys that lead to a value; a table in an array of tables is a number: `("rule", "0", "match")`."""

_HEADER = re.compile(r"\s*(?P<open>\[\[?)\s*(?P<path>[^\[\]]+?)\s*\]\]?\s*(?:#.*)?")
_KEY = re.compile(r"""\s*(?P<path>(?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")
_QUOTED = re.compile(r""""[^"]*"|'[^']*'""")
_PART = re.compile(r"""[\w-]+|"[^"]*"|'[^']*'""")


def parse_toml(text: str, name: str, error_type: Callable[[str, Sequence[Problem]], Exception], fix: str) -> Any:
    """Parse a TOML text.

    Args:
        text: the text.
        name: the name of the file, for messages.
        error_type: creates the error to raise, from a headline and its problem.
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
    lines: dict[Path, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        lines: dict[Path, int] = {}
        for path, line in _keys(self.text):
            lines.setdefault(path, line)
        object.__setattr__(self, "lines", lines)

    def of(self, path: Path) -> str:
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


def _keys(text: str) -> Iterator[tuple[Path, int]]:
    """Yield each key and table with its line; `[a.b.c]` is also the line of `a.b`."""
    table: Path = ()
    num_tables: collections.Counter[Path] = collections.Counter()
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


def _parts(path: str) -> Path:
    return tuple(part.strip("\"'") for part in _PART.findall(path))
