"""What several runs have in common and in what they differ: a table, and a page with the curves of all."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outlay.core.quantities import counted
from outlay.core.terminal_text import visible
from outlay.render.page import Block, Column, Columns, Line, Notes, Page, Section, Style, Table
from outlay.render.pictures import Chart, ChartLine, Unit
from outlay.render.report import Report
from outlay.report.run_page import is_simulated, mesh_in_words, samples_a_step, speed_in_words
from outlay.train.metric_curves import Points, number_in, thinned
from outlay.train.patience import EVALUATED
from outlay.train.run_record import KILLED, RunRecord
from outlay.train.run_times import FAILED, FINISHED, STOPPED

_STYLES: Mapping[str, Style] = {FINISHED: "", STOPPED: "warning", KILLED: "bad", FAILED: "bad"}
_MOST_LINES, _MOST_POINTS = 12, 600
_MOST_SETTINGS, _LONGEST = 8, 60
_NO_SETTINGS = ("before", "command", "batch", "mesh", "rules")


@dataclass(frozen=True)
class Runs(Report):
    """Several runs, the newest first.

    Attributes:
        names: a name of each.
        records: what each has written.
    """

    names: Sequence[str]
    records: Sequence[RunRecord]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {"runs": [_facts(name, each) for name, each in zip(self.names, self.records, strict=True)]}

    def _in_short(self) -> str:
        return counted(len(self.records), "run")

    def _page(self) -> Page:
        pairs = list(zip(self.names, self.records, strict=True))
        title = counted(len(pairs), "run")
        if not pairs:
            return Page(title, [Line("No run folder is here; `outlay run` leaves one in runs/RECIPE.")])
        blocks: list[Block] = [
            Section("runs", [_table(pairs)]),
            *_differences(pairs),
            Columns([Section(chart.title, [chart]) for chart in _charts(pairs[:_MOST_LINES])], medium="html"),
        ]
        if len(pairs) > _MOST_LINES:
            blocks.append(Notes([f"the curves are of the newest {_MOST_LINES} runs"], medium="html"))
        if any(is_simulated(each.config) for each in self.records):
            blocks.append(Notes(["speeds of simulated devices are none"]))
        return Page(title, blocks)


def _facts(name: str, record: RunRecord) -> dict[str, Any]:
    return {
        "run": name,
        "folder": str(record.path),
        "state": record.state,
        "step": record.step,
        "num_steps": record.num_steps,
        "metrics": {each: number_in(record.last, each) for each in record.curves.points if each in record.last},
        "goodput": record.goodput,
        "seconds": record.seconds,
        "began": record.sessions[0].began if record.sessions else None,
        "config": dict(record.config),
    }


def _table(pairs: Sequence[tuple[str, RunRecord]]) -> Table:
    return Table.of(
        pairs,
        [
            (Column("run", "path"), lambda pair: visible(pair[0])),
            (Column("state"), lambda pair: pair[1].state),
            (Column("step", "number"), lambda pair: _step(pair[1])),
            (Column("loss", "number"), lambda pair: _last(pair[1], "loss")),
            (Column("held out", "number"), lambda pair: _last(pair[1], f"{EVALUATED}loss")),
            (Column("speed", "number"), lambda pair: speed_in_words(pair[1])),
            (Column("goodput", "number"), lambda pair: _share(pair[1].goodput)),
            (Column("layout"), lambda pair: _short(pair[1].config.get("layout"))),
            (Column("on", medium="html"), lambda pair: mesh_in_words(pair[1].config) or ""),
        ],
        style=lambda pair: _STYLES.get(pair[1].state, ""),
    )


def _step(record: RunRecord) -> str:
    return f"{record.step:,}" + (f"/{record.num_steps:,}" if record.num_steps else "")


def _last(record: RunRecord, name: str) -> str:
    """Return the last value of a metric, which an evaluation has not in every step."""
    points = record.curves.points.get(name)
    return "" if not points else "not finite" if points[-1][1] is None else f"{points[-1][1]:.4g}"


def _share(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"


def _differences(pairs: Sequence[tuple[str, RunRecord]]) -> list[Block]:
    """Return a table of the settings that are not the same in all runs."""
    settings = [{**_settings(record.config), "mesh": mesh_in_words(record.config) or ""} for _, record in pairs]
    names = list(dict.fromkeys(name for each in settings for name in each))
    other = [name for name in names if len({each.get(name, "") for each in settings}) > 1]
    if not other:
        return []
    shown = other[:_MOST_SETTINGS]
    columns = [(Column(visible(name[:_LONGEST])), lambda pair, name=name: pair[1].get(name, "")) for name in shown]
    run = (Column("run", "path"), lambda pair: visible(pair[0]))
    named = [(name, each) for (name, _), each in zip(pairs, settings, strict=True)]
    left = [f"and {', '.join(other[_MOST_SETTINGS:])}"] if other[_MOST_SETTINGS:] else []
    return [Section("settings that differ", [Table.of(named, [run, *columns]), Notes(left, label="")])]


def _settings(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return the entries of a configuration by dotted name, as text."""
    flat: dict[str, str] = {}
    for name, value in config.items():
        if not prefix and name in _NO_SETTINGS:
            continue
        flat |= (
            _settings(value, f"{name}.") if isinstance(value, dict) and not prefix else {prefix + name: _short(value)}
        )
    return flat


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else "" if value is None else json.dumps(value)
    text = visible(text).encode(errors="replace").decode()
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _charts(pairs: Sequence[tuple[str, RunRecord]]) -> list[Chart]:
    """Return a chart of each metric, of the speed and of the memory, with a line for every run that has it."""
    lines: dict[tuple[str, Unit], list[ChartLine]] = {}
    for name, record in pairs:
        samples = samples_a_step(record.config)
        speed = [(step, rate and rate * (samples or 1)) for step, rate in record.rate]
        curves: dict[tuple[str, Unit], Points] = {
            (metric, ""): points for metric, points in record.curves.points.items()
        }
        curves[("samples a second" if samples else "steps a second", "")] = speed
        curves[("memory in use", "bytes")] = record.memory
        for (title, unit), points in curves.items():
            if points:
                title = visible(title[:_LONGEST])
                unit = "percent" if title.rpartition(".")[2] == "accuracy" else unit
                lines.setdefault((title, unit), []).append(ChartLine(visible(name), thinned(points, _MOST_POINTS)))
    in_order = sorted(lines, key=lambda key: (key[0] != "loss", key[0] != f"{EVALUATED}loss"))
    return [Chart(title, lines[title, unit], "step", unit) for title, unit in in_order]
