"""Build the tables of the report: collectives, host copies and operations, by source line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePath
from typing import Any

from outlay.analysis.attribution.collective_facts import Total, like_names, rows
from outlay.analysis.attribution.leaves import LayoutFacts
from outlay.analysis.attribution.program_facts import CollectiveFacts, HostCopyFacts, RecomputedFacts, WorkFacts
from outlay.analysis.attribution.timeline import OperationFacts
from outlay.analysis.hlo.hlo_module import SourceLine
from outlay.core.quantities import counted, format_bytes, format_flops, format_seconds
from outlay.devices.mesh_info import MeshInfo
from outlay.devices.target import Target
from outlay.render.page import (
    Block,
    Cell,
    Chip,
    Column,
    Columns,
    Line,
    Medium,
    Row,
    Section,
    Segment,
    Table,
    colour_of,
    with_bars,
)
from outlay.render.pictures import Bar, Bars

_COLOURS = {"all-gather": 0, "all-reduce": 1, "reduce-scatter": 2, "all-to-all": 3, "collective-permute": 4}
"""The index of the page colour for each kind of collective; other kinds get the last."""

_MAX_ROWS = 14
_MAX_OPERATIONS = 8
_WIDE = range(130, sys.maxsize)
"""The widths of the terminals on which modules get a column of their own."""

_MAX_PATH = 34


def colour_of_kind(kind: str) -> str:
    """Return the page colour of a kind of collective, or of computation."""
    return "work" if kind == "compute" else colour_of(_COLOURS.get(kind, 5))


def devices_in_words(mesh: MeshInfo | None, target: Target | None) -> str:
    """Name the mesh of a program and its target, unless the mesh names that itself, as one of compile-only devices."""
    where = str(mesh) if mesh else "no mesh known"
    return f"{where}, target {target}" if target and str(target) not in where else where


def device_chips(mesh: MeshInfo | None, target: Target | None, of_simulated: str) -> Iterator[Chip]:
    """Yield what the page says of a program's devices, and a warning if they are simulated."""
    if mesh:
        yield Chip(f"mesh {' × '.join(f'{name}={size}' for name, size in mesh.axes)}")
    if target:
        yield Chip(str(target))
    if mesh and mesh.kind == "simulated":
        yield Chip("simulated devices", "warning", of_simulated)


def collective_tables(
    facts: Sequence[CollectiveFacts], sums: dict[str, dict[str, Total]], bytes_per_step: int, *, with_time: bool
) -> Iterator[Block]:
    """List the collectives by line, with sums; identical layers share a row.

    Args:
        facts: the collectives.
        sums: their sums by title; `by module` among them.
        bytes_per_step: the bytes that a device sends in a step.
        with_time: whether their times are known.
    """
    lines = rows(facts)
    if not lines:
        yield Section("collectives", [], "none")
        return
    table, often = _collectives(lines, bytes_per_step, _MAX_ROWS, with_time=with_time)
    # In text each sum is a line; the page has the modules, which may be many, as a table.
    yield Section("collectives", [table, *(_sums(title, sums[title], "text") for title in sums)], often)
    modules = Section("by module", [_modules(sums["by module"])])
    others = [_sums(title, totals, "both") for title, totals in sums.items() if title != "by module"]
    beside = Section("sums", others)
    yield Columns([modules, beside], medium="html")


def dearest_collectives(facts: Sequence[CollectiveFacts], bytes_per_step: int, limit: int) -> Iterator[Block]:
    """List the collectives that send most, so many lines of them."""
    if lines := rows(facts):
        table, often = _collectives(lines, bytes_per_step, limit, with_time=False)
        yield Section("collectives", [table], often)


def _collectives(lines: Sequence[Any], bytes_per_step: int, limit: int, *, with_time: bool) -> tuple[Table, str]:
    """Return the table of collectives by line, and what it has in all."""
    is_timed = any(row.total.waited is not None for row in lines)
    columns = [
        (Column("kind"), lambda row: Cell(row.kind, colour=colour_of_kind(row.kind))),
        (Column("axis"), lambda row: row.axes),
        (Column("a step", "number"), with_bars(lines, lambda row: row.total.bytes_per_step, format_bytes)),
        (Column("runs", "number"), lambda row: f"{row.total.num_runs:,}{'' if row.is_exact else '+'}"),
        *([(Column("time", "number"), lambda row: _seconds(row.total))] if with_time else []),
        *([(Column("hidden", "number"), lambda row: _hidden(row.total))] if is_timed else []),
        (Column("phase"), lambda row: row.phase),
        (Column("what", "path", is_key=True), lambda row: row.what),
        (Column("module", "words", widths=_WIDE), lambda row: row.module),
        (Column("line", "code", is_key=True), lambda row: line_cell(row.source)),
    ]
    rest = _rest(lines, lambda row: row.total.bytes_per_step, format_bytes, limit)
    runs = counted(sum(row.total.num_runs for row in lines), "run")
    often = f"{runs} a step, a device sends {format_bytes(bytes_per_step)}"
    return Table.of(lines, columns, limit=limit, rest=rest), often


def _seconds(total: Total) -> str:
    return "" if total.seconds is None else format_seconds(total.seconds)


def _hidden(total: Total) -> str:
    """Return the share of the time in which the device computes."""
    return f"{max(0.0, 1 - total.waited / total.seconds):.0%}" if total.seconds and total.waited is not None else ""


def _sums(title: str, totals: dict[str, Total], medium: Medium) -> Bars:
    sums = like_names(totals)
    most = max((total.bytes_per_step for _, total, _ in sums), default=0) or 1
    bars = [
        Bar(
            name or "unknown",
            format_bytes(total.bytes_per_step),
            [Segment(name, total.bytes_per_step / most, colour_of_kind(name) if name in _COLOURS else "s0")],
        )
        for name, total, _ in sums
    ]
    return Bars(title, bars, medium=medium)


def _modules(totals: dict[str, Total]) -> Table:
    sums = like_names(totals)
    sent = with_bars([total for _, total, _ in sums], lambda total: total.bytes_per_step, format_bytes)
    columns = [Column("module", "words"), *(Column(name, "number") for name in ("a step", "runs", "time"))]

    def cells(name: str, total: Total) -> list[Cell | str]:
        return [name or "(no module known)", sent(total), f"{total.num_runs:,}", _seconds(total)]

    rows = [
        Row(
            cells(f"{name} x{len(members)}" if len(members) > 1 else name, total),
            members=[cells(member, totals[member]) for member in members] if len(members) > 1 else (),
        )
        for name, total, members in sums
    ]
    return Table(columns, rows, limit=_MAX_ROWS)


def layout_of(layout: LayoutFacts | None, work: WorkFacts | None) -> Iterator[Block]:
    """Show on the page which leaves have which dtype and place, and in which dtypes products are computed."""
    if layout is None:
        return
    columns = [
        (Column("part"), lambda one: one.part),
        (Column("dtype"), lambda one: one.dtype),
        (Column("split", "code"), lambda one: one.spec + (" on the host" if one.on_host else "")),
        (Column("leaves", "number"), lambda one: str(one.num_leaves)),
        (Column("a device", "number"), with_bars(layout.placed, lambda one: one.bytes_per_device, format_bytes)),
        (Column("in all", "number"), lambda one: format_bytes(one.bytes_total)),
        (Column("such as", "path", is_key=True), lambda one: one.example),
    ]
    by_dtype = sorted(work.flops_by_dtype.items(), key=lambda item: -item[1]) if work else []
    products = ", ".join(f"{dtype} {format_flops(flops)}" for dtype, flops in by_dtype if flops)
    lines = [Line(f"products by the dtype of their operands: {products}")] if products else []
    table = Table.of(layout.placed, columns, limit=_MAX_ROWS)
    yield Section("layout and dtypes", [table, *lines], " + ".join(layout.names), medium="html")


def host_copies(copies: Sequence[HostCopyFacts]) -> Iterator[Block]:
    """List the copies to and from the host, by leaf or line."""
    if not copies:
        return
    sent = sum(copy.bytes_per_step for copy in copies if copy.to_host)
    fetched = sum(copy.bytes_per_step for copy in copies) - sent
    columns = [
        (Column("copy"), lambda copy: "to the host" if copy.to_host else "from the host"),
        (Column("a step", "number"), with_bars(copies, lambda copy: copy.bytes_per_step, format_bytes)),
        (Column("runs", "number"), lambda copy: f"{copy.count:,}"),
        (Column("what", "path", is_key=True), lambda copy: copy.leaf or f"a value, {copy.phase}"),
        (Column("line", "code", is_key=True), lambda copy: line_cell(copy.source)),
    ]
    rest = _rest(copies, lambda copy: copy.bytes_per_step, format_bytes)
    remark = f"{format_bytes(sent)} a step to the host, {format_bytes(fetched)} back"
    table = Table.of(copies, columns, limit=_MAX_ROWS, rest=rest)
    yield Section("copies to and from the host", [table], remark)


def operations(facts: Sequence[OperationFacts], limit: int = _MAX_OPERATIONS) -> Iterator[Block]:
    """List the most expensive lines of a step, so many of them."""
    if not facts:
        return
    columns = [
        (Column("time", "number"), with_bars(facts, lambda operation: operation.seconds, format_seconds)),
        (Column("share", "number"), lambda operation: f"{operation.share:.1%}"),
        (Column("bound by"), lambda operation: operation.bound_by),
        (Column("FLOPs", "number"), lambda operation: format_flops(operation.flops) if operation.flops else ""),
        (Column("bytes", "number"), lambda operation: format_bytes(operation.num_bytes)),
        (Column("runs", "number", widths=_WIDE), lambda operation: f"{operation.runs:,}"),
        (Column("what", is_key=True), lambda operation: operation.what),
        (Column("line", "code", is_key=True), lambda operation: line_cell(operation.source)),
    ]
    table = Table.of(facts, columns, limit=limit)
    yield Section("where the time goes", [table], "by line; communication counts only while the device waits for it")


def recomputed(products: Sequence[RecomputedFacts]) -> Iterator[Block]:
    """List the products that the backward pass recomputes, by line."""
    if not products:
        return
    columns = [
        (Column("a step", "number"), with_bars(products, lambda product: product.flops_per_step, format_flops)),
        (Column("runs", "number"), lambda product: f"{product.count:,}"),
        (Column("module", "words"), lambda product: product.module or "(no module known)"),
        (Column("line", "code", is_key=True), lambda product: line_cell(product.source)),
    ]
    rest = _rest(products, lambda product: product.flops_per_step, format_flops)
    remark = f"{format_flops(sum(product.flops_per_step for product in products))} a step"
    table = Table.of(products, columns, limit=_MAX_ROWS, rest=rest)
    yield Section("recomputed in the backward pass", [table], remark)


def _rest(rows: Sequence[Any], size: Callable[[Any], Any], words: Callable[[Any], str], limit: int = _MAX_ROWS) -> str:
    """Sum up the rows beyond the limit."""
    rest = rows[limit:]
    return f"and {counted(len(rest), 'more line')}, together {words(sum(map(size, rest)))} a step"


def line_cell(source: SourceLine | None) -> Cell:
    """Make a cell with a source line; the page shows the whole path on hover."""
    return Cell(short_source(source), hint=str(source or ""))


def short_source(source: SourceLine | None) -> str:
    """Write a source line; a long path is cut to its end."""
    if source is None:
        return ""
    text = str(source)
    if len(text) <= _MAX_PATH:
        return text
    return "…/" + "/".join(PurePath(source.file).parts[-2:]) + f":{source.line}"


def from_here(file: str) -> str:
    """Return a path as everybody sees it: from the working folder, and that of a package's file from the package.

    Two environments hold the same package in folders of their own.
    """
    path = Path(file)
    root = path.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    base = root if root != path.parent else Path.cwd()
    return str(path.relative_to(base)) if path.is_relative_to(base) else file
