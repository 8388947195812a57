"""The page of a run of any kind: its results, curves and times, how it was run, and where every array lived."""

from __future__ import annotations

import base64
import datetime
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from outlay.core.quantities import counted, format_seconds
from outlay.core.terminal_text import visible
from outlay.devices.mesh_info import MeshInfo
from outlay.layout.plan import Plan
from outlay.render.html import html_of_page
from outlay.render.page import (
    Block,
    Chip,
    Code,
    Column,
    Columns,
    Facts,
    Notes,
    Page,
    Row,
    Section,
    Segment,
    Stat,
    Stats,
    Style,
    Table,
)
from outlay.render.pictures import Chart, ChartLine, Frame, Image, Stack
from outlay.report.show import show
from outlay.train.metric_curves import metric_sections, number_in
from outlay.train.metrics_file import metrics_in_words
from outlay.train.patience import EVALUATED
from outlay.train.run_record import KILLED, RunRecord
from outlay.train.run_times import COMPILE, EVALUATE, FAILED, FINISHED, INPUT, OTHER, SAVE, STEPS, STOPPED

_STYLES: Mapping[str, Style] = {FINISHED: "good", STOPPED: "warning", KILLED: "bad", FAILED: "bad"}
_PHASES = {
    STEPS: ("s0", "steps", "the devices compute, or are given work"),
    INPUT: ("s1", "waiting for input", "batches were read while the devices had nothing to do"),
    EVALUATE: ("s2", "evaluating", "on held-out data"),
    SAVE: ("s3", "saving", "checkpoints; most of it goes on beside the steps and is not in here"),
    COMPILE: ("s5", "compiling", "and making the first state"),
    OTHER: ("work", "everything else", "checks before, pictures and report after"),
}
_MOST_WORDS = 400


def png_image(title: str, path: Path, caption: str = "", *, is_wide: bool = False) -> Image:
    """Return a PNG file as an image inside the page, so that the page needs no other file.

    Args:
        title: what it shows.
        path: the file.
        caption: how to read it.
        is_wide: whether its text is too small for half a page.
    """
    return Image(title, base64.b64encode(path.read_bytes()).decode(), caption, is_wide)


def run_page(
    title: str,
    facts: Mapping[str, str],
    plan: Plan,
    record: RunRecord,
    *,
    table: Sequence[Mapping[str, str]] = (),
    numbers: Collection[str] = (),
    pictures: Sequence[Image] = (),
    sample: str = "",
) -> str:
    """Build the page of a run that has ended well as HTML.

    Args:
        title: the heading.
        facts: the result in words, by name.
        plan: where every array lived.
        record: what the run has written.
        table: a table below the facts, its rows by the heads of their columns.
        numbers: heads of the columns that hold numbers.
        pictures: the pictures below, each with a heading.
        sample: text that the run shows.
    """
    result: list[Block] = [Facts({name.replace("_", " "): words for name, words in facts.items()})]
    if table:
        heads = list(table[0])  # the last one is what the others lead to
        columns = [Column(head, "number" if head in numbers else "", is_key=head == heads[-1]) for head in heads]
        result.append(Table(columns, [Row(list(row.values())) for row in table]))
    shown = [Section(picture.title, [picture]) for picture in pictures]
    blocks = [
        *_stats(record),
        Columns([Section("result", result), *_where_the_time_went(record)]),
        *_curves(record),
        *([Columns(shown)] if shown else []),
        how_it_was_run(record),
        *([Section("sample", [Code(sample)])] if sample else []),
        # A page of its own: its script and styles do not meet those of this one.
        Frame("where every array lived", show(plan).to_html()),
    ]
    return html_of_page(Page(title, blocks, chips=_chips(record, FINISHED)))


def page_so_far(record: RunRecord) -> Page:
    """Return the page of a run that may still go on, or was killed, from its folder alone."""
    config = record.config
    name, layout = (_words(config.get(each)) for each in ("recipe", "layout"))
    title = " under ".join(filter(None, (name, layout))) or record.path.name
    state = record.state
    warnings = {
        KILLED: f"the run was killed, or its machine went down, after step {record.step:,}",
        FAILED: f"the run failed after step {record.step:,}",
        STOPPED: f"the run was stopped after step {record.step:,}",
    }
    notes = [warnings[state]] if state in warnings else []
    if record.num_unread:
        notes.append(f"{counted(record.num_unread, 'line')} of its files could not be read")
    blocks = [
        Notes(notes, is_warning=True),
        *_stats(record),
        *_curves(record),
        Columns([how_it_was_run(record), *_where_the_time_went(record)]),
    ]
    return Page(title, blocks, chips=_chips(record, state), footer=f"Folder {visible(str(record.path))}.")


def how_it_was_run(record: RunRecord) -> Section:
    """Return the command, the configuration and the versions of a run."""
    config = record.config
    versions = config.get("versions")
    batch = config.get("batch")
    facts = {
        "command": config.get("command"),
        "recipe": config.get("recipe"),
        "layout": config.get("layout"),
        "mode": config.get("mode"),
        "mesh": mesh_in_words(config),
        "rules": _joined(config.get("rules")),
        "steps": record.num_steps,
        "checkpoints": f"every {config['checkpoint_every']} steps" if config.get("checkpoint_every") else None,
        "evaluated": f"every {config['evaluate_every']} steps" if config.get("evaluate_every") else None,
        "seed": config.get("seed"),
        "batch": ", ".join(f"{name} {_shape(leaf)}" for name, leaf in batch.items()) if _is_object(batch) else None,
        "commit": config.get("commit"),
        "versions": ", ".join(f"{name} {each}" for name, each in versions.items()) if _is_object(versions) else None,
        "processes": record.sessions[-1].processes if record.sessions else None,
        "began": _date(record.sessions[0].began) if record.sessions else None,
        "folder": str(record.path),
    }
    blocks: list[Block] = [Facts({name: _words(value) for name, value in facts.items() if value not in (None, "")})]
    if len(record.sessions) > 1:
        blocks.append(_starts(record))
    return Section("how it was run", blocks)


def mesh_in_words(config: Mapping[str, Any]) -> str | None:
    """Return the mesh of a configuration in words; None without one that can be read."""
    try:
        return str(MeshInfo.from_dict(config["mesh"]))
    except Exception:  # a file that anybody may have edited
        return None


def is_simulated(config: Mapping[str, Any]) -> bool:
    """Return whether a run was on simulated devices, so that its times are no speed."""
    mesh = config.get("mesh")
    return _is_object(mesh) and mesh.get("kind") == "simulated"


def samples_a_step(config: Mapping[str, Any]) -> int | None:
    """Return the samples of a batch; None if the configuration does not say."""
    batch = config.get("batch")
    leaf = next(iter(batch.values()), None) if _is_object(batch) and batch else None
    shape = leaf.get("shape") if isinstance(leaf, dict) else None
    first = shape[0] if isinstance(shape, list) and shape else None
    return first if isinstance(first, int) and first > 0 else None


def speed_in_words(record: RunRecord) -> str:
    """Return the speed of the last steps in words; empty if there is none yet."""
    recent = [rate for _, rate in record.rate[-10:] if rate]
    if not recent:
        return ""
    rate, samples = len(recent) / sum(1 / each for each in recent), samples_a_step(record.config)
    return f"{rate * samples:,.0f} samples/s" if samples else f"{rate:,.3g} steps/s"


def _chips(record: RunRecord, state: str) -> list[Chip]:
    mesh = mesh_in_words(record.config)
    caveat = Chip("simulated", "warning", "its times are not a speed")
    return [
        Chip(state, _STYLES.get(state, "")),
        *([Chip(mesh)] if mesh else []),
        *([caveat] if is_simulated(record.config) else []),
    ]


def _stats(record: RunRecord) -> list[Block]:
    last, of = record.last, record.num_steps
    stats = []
    training = [name for name in record.curves.points if not name.startswith(EVALUATED)]
    for name in sorted(training, key=lambda name: name != "loss")[:1]:
        held_out = next((y for _, y in reversed(record.curves.points.get(EVALUATED + name, ()))), None)
        remark = "" if held_out is None else f"{_metric(name, held_out)} on held-out data"
        stats.append(Stat(visible(name[:60]), _metric(name, number_in(last, name)), remark))
    stats.append(Stat("steps", f"{record.step:,}", f"of {of:,}" if of else ""))
    if speed := speed_in_words(record):
        caveat = "simulated devices: this is not a speed" if is_simulated(record.config) else "over the last steps"
        stats.append(Stat("speed", speed, caveat))
    if (goodput := record.goodput) is not None:
        seconds = record.seconds
        remark = f"{format_seconds(seconds[STEPS])} of {format_seconds(sum(seconds.values()))} went to steps"
        if record.num_repeated:
            remark += f"; {counted(record.num_repeated, 'step')} taken again"
        stats.append(Stat("goodput", f"{goodput:.1%}", remark))
    return [Stats(stats, "The run")]


def _metric(name: str, value: float | None) -> str:
    return "not finite" if value is None else metrics_in_words({name: value}).rpartition(" ")[2]


def _curves(record: RunRecord) -> list[Block]:
    """Return the curves of all metrics, what is a row of numbers, and the curves of the speed and of the memory."""
    sections = metric_sections(record.curves)
    if any(isinstance(value, list) for value in record.last.values()):
        from outlay.report.metric_rows import row_sections  # most metrics are one number

        sections += row_sections(record.last)
    if len(record.rate) > 1:
        samples = samples_a_step(record.config)
        title = "samples a second" if samples else "steps a second"
        points = [(step, rate and rate * (samples or 1)) for step, rate in record.rate]
        remark = "simulated devices: this is not a speed" if is_simulated(record.config) else ""
        sections.append(Section(title, [Chart(title, [ChartLine(title, points)], "step")], remark))
    if len({step for step, _ in record.memory}) > 1:
        of_device = record.sessions[-1].memory_of == "device"
        title = "memory in use on the fullest device" if of_device else "memory of the process"
        remark = "" if of_device else "these devices do not tell their own"
        sections.append(Section(title, [Chart(title, [ChartLine(title, record.memory)], "step", "bytes")], remark))
    return [Columns(sections)] if sections else []


def _where_the_time_went(record: RunRecord) -> list[Section]:
    seconds = record.seconds
    total = sum(seconds.values())
    if not total:
        return []
    parts = [
        Segment(name, seconds[phase] / total, colour, format_seconds(seconds[phase]), remark)
        for phase, (colour, name, remark) in _PHASES.items()
        if seconds[phase]
    ]
    return [Section("where the time went", [Stack(parts)], f"{format_seconds(total)} in all")]


def _starts(record: RunRecord) -> Table:
    """Return the starts of a run that was continued."""
    names = ("began", "after step", "to step", "end", "processes")
    rows = [
        Row([_date(each.began), f"{each.after:,}", f"{each.step:,}", each.end or KILLED, f"{each.processes}"])
        for each in record.sessions[:-1]
    ]
    last = record.sessions[-1]
    rows.append(Row([_date(last.began), f"{last.after:,}", f"{last.step:,}", last.end, f"{last.processes}"]))
    return Table([Column(name, "" if name in ("began", "end") else "number") for name in names], rows, limit=10)


def _date(seconds: float) -> str:
    try:
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return "?"


def _words(value: Any) -> str:
    """Return a value of a configuration, which may come from anywhere, as text of reasonable length."""
    text = visible("" if value is None else str(value))
    text = text.encode(errors="replace").decode()
    return text if len(text) <= _MOST_WORDS else f"{text[:_MOST_WORDS]}..."


def _joined(value: Any) -> str | None:
    return "; ".join(map(str, value)) if isinstance(value, list) else None


def _shape(leaf: Any) -> str:
    return f"{leaf.get('dtype')} {leaf.get('shape')}" if isinstance(leaf, dict) else "?"


def _is_object(value: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)
