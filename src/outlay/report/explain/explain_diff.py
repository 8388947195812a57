"""Compare two reports of `outlay explain`: memory, time, work, and the communication of each line."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outlay.analysis.attribution.collective_facts import starred
from outlay.core.error_types import ExplainError
from outlay.core.input_file import read_text
from outlay.core.quantities import counted, format_bytes, format_flops, format_seconds
from outlay.core.terminal_text import visible
from outlay.render.page import Column, Line, Page, Section, Table
from outlay.render.report import Report
from outlay.report.explain.explain_tables import from_here

Saved = Mapping[str, Any]
"""A report as `Explanation.to_dict()` returns it, or read from a JSON file."""


@dataclass(frozen=True)
class Difference:
    """A figure of two reports; 0 in a report that lacks the line.

    Attributes:
        what: the figure, or the communication and its line.
        unit: `bytes`, `seconds`, `FLOPs` or `runs`.
        before: its value in the first report.
        after: its value in the second.
    """

    what: str
    unit: str
    before: float
    after: float


@dataclass(frozen=True)
class ExplainDiff(Report):
    """The differences between two reports; falsy if there are none.

    Attributes:
        names: the subject of each report, with its mesh and target.
        totals: the figures that differ, per device and step.
        lines: collectives, copies to and from the host, and recomputed products that differ, largest first.
        sides: what is compared, such as two layouts; empty if the names say that.
        made: the seconds to trace and to compile each program, which are other ones each time: no difference.
        numbers: for each side, whether it computes what one device does, in words; empty if that was not asked.
    """

    names: tuple[str, str]
    totals: tuple[Difference, ...]
    lines: tuple[Difference, ...]
    sides: tuple[str, str] = ("", "")
    made: tuple[Difference, ...] = ()
    numbers: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.totals or self.lines) or self.names[0] != self.names[1] or len(set(self.numbers)) > 1

    def _page(self) -> Page:
        if not self and not self.made:
            return Page("the same: memory, time, and every line that moves something", [])
        tables = {"of a device in a step": self.totals, "by line": self.lines, "to make the program": self.made}
        sections = [
            Section(title, [_table(differences, self._heads)]) for title, differences in tables.items() if differences
        ]
        if self.numbers:
            lines = [Line(f"{side}: {verdict}") for side, verdict in zip(self.sides, self.numbers, strict=True)]
            sections.insert(0, Section("numbers, against one device", lines))
        return Page(self._title, sections)

    @property
    def _heads(self) -> tuple[str, str]:
        return ("before", "after") if self.sides[0] == self.sides[1] else self.sides

    @property
    def _title(self) -> str:
        first, second = self.names
        names = first if first == second else f"{first}  ->  {second}"
        return names if self.sides[0] == self.sides[1] else f"{self.sides[0]} -> {self.sides[1]}: {names}"

    def to_markdown(self, broken: Sequence[str] = ()) -> str:
        """Return it for a comment on a change in review: what broke a limit, the figures, and folded the lines.

        Args:
            broken: a sentence for each limit that is exceeded.
        """
        if not self and not self.made:
            return "**Layout**: the same memory, time, and every line that moves something\n"
        parts = [f"**Layout** {self._title}", *(f"- :x: {_escaped(sentence)}" for sentence in broken)]
        pairs = zip(self.sides, self.numbers, strict=True) if self.numbers else ()
        parts += [f"- {_escaped(side)}: {_escaped(verdict)}" for side, verdict in pairs]
        if figures := (*self.totals, *self.made):
            parts.append(_markdown(figures, self._heads))
        if self.lines:
            folded = f"<details><summary>{counted(len(self.lines), 'line')} that move something else</summary>"
            parts += [folded, _markdown(self.lines[:_MOST_LINES], self._heads), "</details>"]
        return "\n\n".join(parts) + "\n"


def diff_reports(
    before: Saved, after: Saved, sides: tuple[str, str] = ("", ""), *, numbers: tuple[str, ...] | None = None
) -> ExplainDiff:
    """Compare two reports.

    Args:
        before: the first.
        after: the second.
        sides: what they are of, such as two layouts.
        numbers: where one program was made in two ways: for each, whether it computes what one device does; empty if
            that was not asked. The times to trace and compile it are then told too, and what only stands at another
            line of the source is the same.
    """
    totals = _differing(_totals(before), _totals(after))
    lines = _differing(_lines(before), _lines(after))
    if numbers is not None:
        # Two compilers give the same exchange another line, such as that of its loop, and its value another name.
        kinds = {(one.what, one.unit) for one in _differing(*map(_by_kind, map(_lines, (before, after))))}
        lines = [one for one in lines if (_kind(one.what), one.unit) in kinds]
    largest = sorted(lines, key=lambda one: -abs(one.after - one.before))
    made = () if numbers is None else tuple(_differing(_seconds_to_make(before), _seconds_to_make(after)))
    return ExplainDiff((_name(before), _name(after)), tuple(totals), tuple(largest), sides, made, numbers or ())


def read_report(path: Path) -> Saved:
    """Read a report that `outlay explain --json` wrote.

    Raises:
        ExplainError: the file cannot be read, or is not such a report.
    """
    # A page, which holds less than the report, is not to be written over.
    fix = f"outlay explain RECIPE --json > {path.with_suffix('.json').name if path.suffix == '.html' else path.name}"
    try:
        report = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, FileNotFoundError):
            fix += "; of two layouts, outlay diff A B --recipe RECIPE"
        raise ExplainError(f"{path} cannot be read as a report: {error}\n  fix: {fix}") from error
    missing = [key for key in _NEEDED if not isinstance(report, dict) or key not in report]
    if missing:
        raise ExplainError(f"{path} is not a report of outlay explain: it lacks {', '.join(missing)}\n  fix: {fix}")
    return report


_MOST_LINES = 50
"""Lines of a comment: GitHub refuses one of more than 65,536 characters."""

_NEEDED = ("name", "bytes_per_step", "collectives", "memory", "work", "estimate")
_AT = " at "
_SAME_TIME = 1e-3  # prices are sums, whose order is not the same in every version; of bytes and runs every one counts
_OF_MEMORY = ("peak", "arguments", "outputs", "temporaries", "constants", "on_host")

Figures = dict[tuple[str, str], float]
"""By what it is and its unit."""


def _name(report: Saved) -> str:
    mesh = report.get("mesh") or {}
    axes = ",".join(f"{name}={size}" for name, size in mesh.get("axes", {}).items())
    return " ".join(part for part in (report["name"], axes and f"on {axes}", report.get("target")) if part)


def _totals(report: Saved) -> Figures:
    memory, work, estimate = (report[key] or {} for key in ("memory", "work", "estimate"))
    return {
        **{(f"memory: {name.replace('_', ' ')}", "bytes"): memory.get(name, 0) for name in _OF_MEMORY},
        ("a step", "seconds"): estimate.get("seconds", 0.0),
        **{(f"a step: {part}", "seconds"): seconds for part, seconds in estimate.get("parts", {}).items()},
        ("sent in a step", "bytes"): report["bytes_per_step"],
        ("products", "FLOPs"): work.get("flops_compiled", 0.0),
    }


def _seconds_to_make(report: Saved) -> Figures:
    known = {"to trace and lower": report.get("trace_seconds"), "to compile": report.get("compile_seconds")}
    return {(what, "seconds"): seconds for what, seconds in known.items() if seconds is not None}


def _by_kind(lines: Figures) -> Figures:
    figures: Figures = {}
    for (what, unit), number in lines.items():
        key = _kind(what), unit
        figures[key] = figures.get(key, 0) + number
    return figures


def _kind(what: str) -> str:
    """Return what a line does, without the value and the line of the source."""
    return what.partition(": ")[0].partition(_AT)[0]


def _lines(report: Saved) -> Figures:
    figures: Figures = {}

    def add(what: str, unit: str, number: float) -> None:
        figures[what, unit] = figures.get((what, unit), 0) + number

    for one in report["collectives"]:
        axes = "+".join(one["axes"]) or f"{one['group_size']} devices"
        moved = starred(one["leaf"] or one["value"])
        what = f"{one['kind']} over {axes}, {one['phase']}: {moved}{_at(one)}"
        add(what, "bytes", one["bytes_per_step"])
        add(what, "runs", one["count"])
    # Reports that are saved in a repository may be older than these two lists.
    for one in report.get("host_copies", ()):
        way = "to the host" if one["to_host"] else "from the host"
        add(f"{way}: {starred(one['leaf']) or 'a value, ' + one['phase']}{_at(one)}", "bytes", one["bytes_per_step"])
    for one in report.get("recomputed", ()):
        add(
            f"recomputed{': ' * bool(one['module'])}{starred(one['module'])}{_at(one)}",
            "FLOPs",
            one["flops_per_step"],
        )
    return figures


def _at(one: Saved) -> str:
    source = one["source"]
    return f"{_AT}{from_here(source['file'])}:{source['line']}" if source else ""


def _differing(before: Figures, after: Figures) -> list[Difference]:
    both = dict.fromkeys((*before, *after))
    pairs = {key: Difference(*key, before.get(key, 0), after.get(key, 0)) for key in both}
    tolerances = {"seconds": _SAME_TIME}
    differing = [
        pair
        for pair in pairs.values()
        if not math.isclose(pair.before, pair.after, rel_tol=tolerances.get(pair.unit, 0.0))
    ]
    compared = {pair.what for pair in differing if pair.unit == "bytes"}
    # As many runs as before may move more: bytes then say all, and a line of runs would repeat it.
    return [pair for pair in differing if pair.unit != "runs" or pair.what not in compared]


def _markdown(differences: Sequence[Difference], heads: tuple[str, str]) -> str:
    rows = [("figure", *heads, "change"), ("---", "---:", "---:", "---:")]
    for one in differences:
        words = _WORDS[one.unit]
        rows.append((one.what, words(one.before), words(one.after), _change(one)))
    return "\n".join(f"| {' | '.join(map(_escaped, row))} |" for row in rows)


def _escaped(text: str) -> str:
    """Return a text that GitHub shows as it is: a path is no markup, and ends no cell."""
    return re.sub(r"([|*_<>`\\])", r"\\\1", visible(text)).replace("\n", " ")


def _table(differences: Sequence[Difference], heads: tuple[str, str]) -> Table:
    columns = [
        (Column("figure"), lambda one: one.what),
        (Column(heads[0], "number", is_name=True), lambda one: _WORDS[one.unit](one.before)),
        (Column(heads[1], "number", is_name=True), lambda one: _WORDS[one.unit](one.after)),
        (Column("change", "number", is_key=True), _change),
    ]
    return Table.of(differences, columns)


_WORDS: dict[str, Callable[[Any], str]] = {
    "bytes": lambda number: format_bytes(int(number)),
    "seconds": format_seconds,
    "FLOPs": format_flops,
    "runs": lambda number: f"{number:,.0f} runs",
}


def _change(one: Difference) -> str:
    if not one.before:
        return "new"
    return "gone" if not one.after else f"{one.after / one.before - 1:+.1%}"
