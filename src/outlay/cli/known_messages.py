"""Messages of JAX, XLA and clusters that are known: how each is recognised, what it means, and what to do.

They stand in `doctor_messages.toml`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from typing import Literal

from outlay.cli.message_values import VALUES

Weight = Literal["error", "warning", "consequence"]
"""What a message says about a log: it names what went wrong, or what is slow, or only follows from something else."""

_DIMS = r"\((?:[^()\n]|\([^()\n]{0,200}\)){0,400}\)"
"""A tuple as it is printed, such as the entries of a PartitionSpec."""


_BOUNDS = {
    r"\s+": r"\s{1,200}",
    r"\w+": r"\w{1,200}",
    r"\S+": r"\S{1,1000}",
    r"\S*": r"\S{0,1000}",
    r"\d+": r"\d{1,40}",
}
"""What a pattern repeats without a bound, and how often at most: a long word must not be tried from each of its letters
to its end. Names and numbers in messages are shorter."""
_REACH = 8192
"""Characters on each side of the word that a message is known by, in which all of it stands."""


@dataclass(frozen=True)
class KnownMessage:
    """A message that is known.

    Attributes:
        theme: what it is about.
        name: what to call it, in two or three words.
        patterns: regular expressions, one for each wording, with the same named groups. A space stands for any white
            space, since pasted text is wrapped anywhere, and DIMS for a tuple such as the entries of a spec.
        meaning: plain words, with the numbers and names of the message in braces.
        fix: the edit, with the same.
        outlay: what in Outlay avoids it; empty where nothing does.
        weight: whether it is the cause, a warning, or the consequence of another failure.
        empty: what stands for a group that a wording lacks.
        filled: what stands around one that it has.
        values: the function of `message_values.py` that makes more of the groups; empty for none.
    """

    theme: str
    name: str
    patterns: tuple[str, ...]
    meaning: str
    fix: str
    outlay: str = ""
    weight: Weight = "error"
    empty: Mapping[str, str] = field(default_factory=dict, hash=False)
    filled: Mapping[str, str] = field(default_factory=dict, hash=False)
    values: str = ""

    @cached_property
    def _compiled(self) -> tuple[tuple[str, re.Pattern[str]], ...]:
        return tuple((longest_word(pattern), _compiled(pattern)) for pattern in self.patterns)

    def find(self, text: str) -> Iterator[tuple[tuple[int, int], str, str]]:
        """Each place in a text where this stands: from and to, and there its meaning and the fix.

        It takes time in proportion to the text: only around a word that the message cannot do without is anything
        matched, and there nothing is repeated without a bound.
        """
        for word, pattern in self._compiled:
            for start, end in _around(word, text):
                for match in pattern.finditer(text, start, end):
                    values = self._in_words({name: value or "" for name, value in match.groupdict().items()})
                    yield match.span(), self.meaning.format(**values), self.fix.format(**values)

    def _in_words(self, groups: dict[str, str]) -> Mapping[str, str]:
        filled = {name: text.format(**groups) for name, text in self.filled.items() if groups.get(name)}
        empty = {name: text for name, text in self.empty.items() if not groups.get(name)}
        words = {**groups, **filled, **empty}
        return VALUES[self.values](words) if self.values else words


def longest_word(pattern: str) -> str:
    r"""The longest text without white space that every match of a pattern holds.

    >>> longest_word(r"Resource axis: (?P<axis>\S+) is not found(?:, sorry)?")
    'Resource'
    """
    words, depth = [""], 0
    tokens = iter(re.findall(r"\\.|\[\^?\]?(?:\\.|[^\]])*\]|\{[\d,]*\}|.", pattern, re.DOTALL))
    for token in tokens:
        depth += (token == "(") - (token == ")")
        literal = token[1:] if token[0] == "\\" and not token[1].isalnum() else token
        if token in ("?", "*") or token.startswith("{"):  # what stands before may be missing
            words[-1:] = [words[-1][:-1], ""]
        elif depth or len(literal) > 1 or literal in " ()+|.^$":
            words.append("")
        else:
            words[-1] += literal
    return max(words, key=len)


def _compiled(pattern: str) -> re.Pattern[str]:
    written = pattern.replace(" ", r"\s+")
    for unbounded, bounded in _BOUNDS.items():
        written = written.replace(unbounded, bounded)
    return re.compile(written.replace("DIMS", _DIMS), re.DOTALL)


def _around(word: str, text: str) -> Iterator[tuple[int, int]]:
    """The stretches of a text in which a word stands or is near; none overlaps another."""
    start = end = 0
    at = text.find(word)
    while at >= 0:
        if at - _REACH > end:
            if end:
                yield start, end
            start = at - _REACH
        end = at + len(word) + _REACH
        at = text.find(word, at + 1)
    if end:
        yield start, end


def _read() -> tuple[KnownMessage, ...]:
    text = (resources.files("outlay.cli") / "doctor_messages.toml").read_text(encoding="utf-8")
    tables = tomllib.loads(text)["message"]
    return tuple(KnownMessage(**{**table, "patterns": tuple(table["patterns"])}) for table in tables)


KNOWN = _read()
