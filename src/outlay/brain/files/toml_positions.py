"""Where a key stands in a TOML file: `tomllib` reads values but forgets their lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

Path = tuple[str, ...]

_HEADER = re.compile(r"\s*\[\[?\s*(?P<path>[^\[\]]+?)\s*\]\]?\s*(?:#.*)?")
_KEY = re.compile(r"""\s*(?P<path>(?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")
_QUOTED = re.compile(r""""[^"]*"|'[^']*'""")
_PART = re.compile(r"""[\w-]+|"[^"]*"|'[^']*'""")


@dataclass(frozen=True)
class TomlLines:
    """The lines of the keys and tables of one file.

    Attributes:
        name: the file, as the user named it.
        text: what it holds.
        lines: the line of each key and table, counted from 1.
    """

    name: str
    text: str
    lines: dict[Path, int] = field(init=False)

    def __post_init__(self) -> None:
        lines: dict[Path, int] = {}
        for path, line in _keys(self.text):
            lines.setdefault(path, line)
        object.__setattr__(self, "lines", lines)

    def of(self, path: Path) -> str:
        """`file:line` of a key, or of what it stands in where it has no line of its own."""
        while path and path not in self.lines:
            path = path[:-1]
        return f"{self.name}:{self.lines[path]}" if path else self.name

    def of_text(self, key: str, is_it: Callable[[str], bool]) -> str:
        """`file:line` of the first text in the list under a key that is the one meant, or of the key."""
        start = self.lines.get((key,), 1)
        for number, line in enumerate(self.text.split("\n")[start - 1 :], start):
            if any(is_it(quoted[1:-1]) for quoted in _QUOTED.findall(line)):
                return f"{self.name}:{number}"
        return self.of((key,))


def _keys(text: str) -> Iterator[tuple[Path, int]]:
    table: Path = ()
    for number, line in enumerate(text.split("\n"), 1):
        if header := _HEADER.fullmatch(line):
            table = _parts(header["path"])
            # `[modules.A_ex.soma]` is also where `modules.A_ex` is first spoken of.
            for length in range(1, len(table) + 1):
                yield table[:length], number
        elif key := _KEY.match(line):
            parts = _parts(key["path"])
            for length in range(1, len(parts) + 1):
                yield table + parts[:length], number


def _parts(path: str) -> Path:
    return tuple(part.strip("\"'") for part in _PART.findall(path))
