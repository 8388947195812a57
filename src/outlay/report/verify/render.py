"""A proof as text and as a page: the answer, then a line for each array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jinja2
from rich.console import Group
from rich.text import Text

from outlay.core.table import table
from outlay.report.verify.facts import LeafCheck, Verdict

COLUMNS = ("array", "step", "max abs", "max rel", "allowed", "ratio", "in float64", "")
MAX_ROWS = 24
COLOURS: dict[Verdict, str] = {"same": "green", "different": "red", "unknown": "yellow"}


def lines(headline: str, verdict: Verdict, leaves: Sequence[LeafCheck], notes: Sequence[str]) -> Group:
    """A proof as rich renderables; of many arrays the first.

    Args:
        headline: the answer in words.
        verdict: the answer.
        leaves: one check for each array, failed ones first.
        notes: what limits the proof.
    """
    rows = [_row(leaf) for leaf in leaves[:MAX_ROWS]]
    answer = Text(headline, style=f"bold {COLOURS[verdict]}")
    parts: list[Any] = [answer, Text(), table(COLUMNS, rows, right=COLUMNS[1:-1])]
    left = leaves[MAX_ROWS:]
    if left:
        num_wrong = sum(leaf.verdict == "different" for leaf in left)
        parts.append(Text(f"and {len(left)} more arrays, {num_wrong or 'none'} of them different"))
    parts += [Text(f"allowed for {words}") for words in dict.fromkeys(leaf.reason for leaf in leaves)][:4]
    parts += [Text(f"note: {note}", style="yellow") for note in notes]
    return Group(*parts)


def page(headline: str, verdict: Verdict, leaves: Sequence[LeafCheck], notes: Sequence[str]) -> str:
    """A proof as a complete page; the arguments are those of `lines`."""
    loader = jinja2.PackageLoader("outlay.report")
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    rows = [(_row(leaf), leaf.verdict, leaf.reason) for leaf in leaves]
    template = environment.get_template("verify.html.j2")
    return template.render(headline=headline, verdict=verdict, columns=COLUMNS, rows=rows, notes=notes)


def _row(leaf: LeafCheck) -> tuple[str, ...]:
    ratio = "" if leaf.ratio is None else f"{leaf.ratio:.4g}"
    replayed = "" if leaf.replayed is None else f"{leaf.replayed:.1e}"
    numbers = (f"{leaf.max_abs:.1e}", f"{leaf.max_rel:.1e}", f"{leaf.allowed:.1e}", ratio, replayed)
    unknown = f"unknown: {leaf.doubt}" if leaf.doubt else ""
    same = f"the same ({leaf.note})" if leaf.note else "the same"
    return (leaf.name, str(leaf.step), *numbers, leaf.fault or unknown or same)
