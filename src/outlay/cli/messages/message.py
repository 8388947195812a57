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

_DIMS = r"\((?:[^()\n]|\([^()\n]*\))*\)"
"""A tuple as it is printed, such as the entries of a PartitionSpec."""


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
    def _compiled(self) -> tuple[re.Pattern[str], ...]:
        written = (pattern.replace(" ", r"\s+").replace("DIMS", _DIMS) for pattern in self.patterns)
        return tuple(re.compile(pattern, re.DOTALL) for pattern in written)

    def find(self, text: str) -> Iterator[tuple[tuple[int, int], str, str]]:
        """Each place in a text where this stands: from and to, and there its meaning and its cure."""
        for pattern in self._compiled:
            for match in pattern.finditer(text):
                values = self.derive({name: value or "" for name, value in match.groupdict().items()})
                yield match.span(), self.meaning.format(**values), self.cure.format(**values)


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
