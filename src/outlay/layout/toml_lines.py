"""Where a rule or a key stands in a TOML file: `tomllib` reads values but forgets their lines."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_HEADER = re.compile(r"""\s*\[\[\s*["']?rule["']?\s*\]\]""")
_NAME = r"""(?:"(?P<double{0}>[^"]*)"|'(?P<single{0}>[^']*)'|(?P<bare{0}>[\w-]+))\s*"""
# `key = ...`, `key.sub = ...`, and the tables `[rule.key]`, `[key]`, `[[key]]`
_KEY = re.compile(rf"""\s*(?:{_NAME.format(1)}[=.]|\[\[?\s*(?:["']?rule["']?\s*\.\s*)?{_NAME.format(2)}[\].])""")


@dataclass(frozen=True)
class TomlLines:
    """Line numbers of the rules and keys of one file, found in one pass over it.

    Attributes:
        name: the file, as the user named it.
        text: what it holds.
        headers: the line, counted from 0, of each `[[rule]]`.
        keys: the first line of each key, by the number of its rule (-1 above the first) and name.
        names: the first line of each key, wherever it stands.
    """

    name: str
    text: str
    headers: tuple[int, ...] = field(init=False)
    keys: dict[tuple[int, str], int] = field(init=False, repr=False)
    names: dict[str, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        headers: list[int] = []
        keys: dict[tuple[int, str], int] = {}
        names: dict[str, int] = {}
        for number, line in enumerate(self.text.split("\n")):
            if _HEADER.match(line):
                headers.append(number)
            if written := _KEY.match(line):
                key = next(name for name in written.groups() if name is not None)
                keys.setdefault((len(headers) - 1, key), number)
                names.setdefault(key, number)
        for name, value in (("headers", tuple(headers)), ("keys", keys), ("names", names)):
            object.__setattr__(self, name, value)

    def of_rule(self, number: int, key: str | None = None) -> str:
        """`file:line` of a key of a rule (0 is the first), or of the rule's header where the key has no line."""
        if number >= len(self.headers):  # rules written inline, `rule = [{...}]`, have no header
            return f"{self.name} (rule {number + 1})"
        line = self.headers[number] if key is None else self.keys.get((number, key), self.headers[number])
        return f"{self.name}:{line + 1}"

    def of_top_level(self, key: str) -> str:
        """`file:line` of a key or table outside the rules."""
        return f"{self.name}:{self.names[key] + 1}" if key in self.names else self.name
