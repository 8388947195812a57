"""Explain a pasted error or log: the known messages in it, causes before their consequences."""

from __future__ import annotations

import bisect
import itertools
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from outlay.cli.known_messages import KNOWN, Weight
from outlay.core.user_code import JAX_CAUSES

_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_RAISED = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)+(?P<message>\S.*)")
_ORDER: tuple[Weight, ...] = ("error", "warning", "consequence")
_MOST_SHOWN = 3
"""Cases of one message that are explained: a log can hold the same warning for hundreds of values."""
_MOST_LETTERS = 300
"""Letters shown of an unknown error: its text can be a whole file."""
_WIDTH = 106


@dataclass(frozen=True)
class Finding:
    """A known message in a text.

    Attributes:
        name: the name of the message.
        weight: whether it is a cause, a warning, or the consequence of another failure.
        line: the line where it first appears, counted from 1.
        times: how often it appears.
        cases: its meaning and what to do, once for each different set of numbers and names.
        outlay: what in Outlay avoids it; empty if nothing does.
    """

    name: str
    weight: Weight
    line: int
    times: int
    cases: tuple[tuple[str, str], ...]
    outlay: str

    def __str__(self) -> str:
        times = f", {self.times} times" if self.times > 1 else ""
        rows: list[tuple[str, str]] = []
        for fix in dict.fromkeys(fix for _, fix in self.cases[:_MOST_SHOWN]):
            rows += [("means", meaning) for meaning, its_fix in self.cases[:_MOST_SHOWN] if its_fix == fix]
            rows += [("fix", fix)]
        more = len(self.cases) - _MOST_SHOWN
        rows += [("", f"and {more} more like it")] if more > 0 else []
        rows += [("outlay", self.outlay)] if self.outlay else []
        return "\n".join([f"{self.name} (line {self.line}{times})", *(_row(title, words) for title, words in rows)])


@dataclass(frozen=True)
class Diagnosis:
    """The known messages in a text, and the errors that are not known.

    Attributes:
        findings: the known messages: errors and then warnings in the order of the text, then consequences.
        raised: the Python errors that are not known, with their lines.
    """

    findings: tuple[Finding, ...]
    raised: tuple[tuple[int, str], ...]

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready data."""
        return asdict(self)

    def __str__(self) -> str:
        unknown = [
            f"not known: {textwrap.shorten(message, _MOST_LETTERS)} (line {line})" for line, message in self.raised
        ]
        if not self.findings:
            counts = Counter(message.theme for message in KNOWN)
            themes = ", ".join(f"{theme} ({count})" for theme, count in counts.items())
            return "\n".join(
                [*unknown, f"none of the {len(KNOWN)} known messages is in this text; they are about: {themes}"]
            )
        parts = [f"{finding}" for finding in self.findings if finding.weight != "consequence"]
        follows = [f"{finding}" for finding in self.findings if finding.weight == "consequence"]
        if unknown:
            parts = ["\n".join(unknown), *parts]
        if follows and not (unknown or any(finding.weight == "error" for finding in self.findings)):
            parts.append(
                "the cause is not in this text: another process failed first, and what follows says where to look"
            )
        elif follows:
            parts.append("what follows is a consequence: processes that noticed that one had failed")
        return "\n\n".join([*parts, *follows])


def diagnose_text(text: str) -> Diagnosis:
    """Find what is known in an error message or a log.

    >>> print(diagnose_text("Resource axis: modle of P('modle',) is not found in mesh: ('data', 'model')."))
    axis not in the mesh (line 1)
      means   P('modle',) names the axis 'modle', but the axes of the mesh are 'data', 'model'; did you mean
              'model'?
      fix    correct the name in the spec, or give the mesh an axis 'modle'
      outlay  a layout refuses the rule that names such an axis, and says which rule
    """
    # Terminals and rich colour what is pasted; Windows and pseudo-terminals end lines with two characters.
    plain = _COLOURS.sub("", text).replace("\r\n", "\n")
    line = _lines_of(plain)
    findings: list[Finding] = []
    spans: list[tuple[int, int]] = []
    for message in KNOWN:
        places = sorted(message.find(plain))
        if not places:
            continue
        spans += [span for span, _, _ in places]
        findings.append(
            Finding(
                name=message.name,
                weight=message.weight,
                line=line(places[0][0][0]),
                times=len(places),
                cases=tuple(dict.fromkeys((meaning, fix) for _, meaning, fix in places)),
                outlay=message.outlay,
            )
        )
    # The table lists the most telling consequences first; a stable sort keeps that order.
    findings.sort(key=lambda each: (_ORDER.index(each.weight), 0 if each.weight == "consequence" else each.line))
    return Diagnosis(tuple(findings), tuple(_unknown(plain, spans, line)))


def _unknown(text: str, spans: list[tuple[int, int]], line: Callable[[int], int]) -> Iterator[tuple[int, str]]:
    """Yield the last lines of tracebacks without a known message, with their line numbers."""
    firsts = sorted(first for first, _ in spans)
    lasts = list(itertools.accumulate((last for _, last in sorted(spans)), max))
    for match in _RAISED.finditer(text):
        start, end = match.span("message")
        begun = bisect.bisect_left(firsts, end)
        is_known = begun > 0 and lasts[begun - 1] > start
        if not is_known and not match["message"].startswith(JAX_CAUSES):
            yield line(start), match["message"]


def _lines_of(text: str) -> Callable[[int], int]:
    """Return the function from a position in a text to its line, counted from 1."""
    ends = [match.start() for match in re.finditer("\n", text)]
    return lambda position: bisect.bisect_left(ends, position) + 1


def _row(title: str, words: str) -> str:
    return textwrap.fill(
        words,
        width=_WIDTH,
        initial_indent=f"  {title:<8}",
        subsequent_indent=" " * 10,
        break_long_words=False,
        break_on_hyphens=False,
    )
