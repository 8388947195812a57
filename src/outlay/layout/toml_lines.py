"""Where a rule or a key stands in a TOML file: `tomllib` reads values but forgets their lines."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_HEADER = re.compile(r"""\s*\[\[\s*["']?rule["']?\s*\]\]""")


@dataclass(frozen=True)
class TomlLines:
    """Line numbers of the rules and keys of one file.

    Attributes:
        name: the file, as the user named it.
        text: what it holds.
        headers: the line, counted from 0, of each `[[rule]]`.
    """

    name: str
    text: str
    headers: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        found = tuple(i for i, line in enumerate(self.text.split("\n")) if _HEADER.match(line))
        object.__setattr__(self, "headers", found)

    def of_rule(self, number: int, key: str | None = None) -> str:
        """`file:line` of a key of a rule (0 is the first), or of the rule's header where the key has no line."""
        if number >= len(self.headers):  # rules written inline, `rule = [{...}]`, have no header
            return f"{self.name} (rule {number + 1})"
        start = self.headers[number]
        end = self.headers[number + 1] if number + 1 < len(self.headers) else len(self.text.split("\n"))
        line = self._line_of_key(key, start + 1, end) if key else None
        return f"{self.name}:{(start if line is None else line) + 1}"

    def of_top_level(self, key: str) -> str:
        """`file:line` of a key or table outside the rules."""
        line = self._line_of_key(key, 0, len(self.text.split("\n")))
        return self.name if line is None else f"{self.name}:{line + 1}"

    def _line_of_key(self, key: str, start: int, end: int) -> int | None:
        # `key = ...`, `key.sub = ...`, and the tables `[rule.key]`, `[key]`, `[[key]]`
        written = rf"""["']?{re.escape(key)}["']?\s*"""
        pattern = re.compile(rf"""\s*(?:{written}[=.]|\[\[?\s*(?:["']?rule["']?\s*\.\s*)?{written}[\].])""")
        lines = self.text.split("\n")
        return next((i for i in range(start, end) if pattern.match(lines[i])), None)
