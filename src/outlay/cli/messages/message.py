"""One message that is known: how to recognise it, what it means in plain words, and what to do."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

Weight = Literal["error", "warning", "consequence"]
"""What a message says about a log: it names what went wrong, or what is slow, or only follows from something else."""

Values = Mapping[str, str]

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


def as_found(values: Values) -> Values:
    """What the message itself says, and nothing more."""
    return values


@dataclass(frozen=True)
class KnownMessage:
    """A message that is known.

    Attributes:
        name: what to call it, in two or three words.
        patterns: regular expressions, one for each wording, with the same named groups. A space stands for any white
            space, since pasted text is wrapped anywhere, and DIMS for a tuple such as the entries of a spec.
        meaning: plain words, with the numbers and names of the message in braces.
        cure: the edit, with the same.
        outlay: what in Outlay avoids it; empty where nothing does.
        weight: whether it is the cause, a warning, or the consequence of another failure.
        derive: from the groups (empty where a wording lacks one) to all that the words use.
    """

    name: str
    patterns: tuple[str, ...]
    meaning: str
    cure: str
    outlay: str = ""
    weight: Weight = "error"
    derive: Callable[[Values], Values] = field(default=as_found, repr=False)

    @cached_property
    def _compiled(self) -> tuple[tuple[str, re.Pattern[str]], ...]:
        return tuple((longest_word(pattern), _compiled(pattern)) for pattern in self.patterns)

    def find(self, text: str) -> Iterator[tuple[tuple[int, int], str, str]]:
        """Each place in a text where this stands: from and to, and there its meaning and its cure.

        It takes time in proportion to the text: only around a word that the message cannot do without is anything
        matched, and there nothing is repeated without a bound.
        """
        for word, pattern in self._compiled:
            for start, end in _around(word, text):
                for match in pattern.finditer(text, start, end):
                    values = self.derive({name: value or "" for name, value in match.groupdict().items()})
                    yield match.span(), self.meaning.format(**values), self.cure.format(**values)


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


def axes_of(spec: str, dim: int) -> str:
    """The mesh axes of one dim of a spec as JAX prints it, quoted; empty where that cannot be read.

    >>> axes_of("(None, ('data', 'model'))", 1)
    "'data', 'model'"
    """
    try:
        axes = ast.literal_eval(spec)[dim]
    except (ValueError, SyntaxError, IndexError, TypeError):
        return ""
    return ", ".join(repr(axis) for axis in (axes if isinstance(axes, tuple) else (axes,)))
