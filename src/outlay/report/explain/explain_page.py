"""An explanation as a page: the facts in words, colours and shares of bars; no new numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from outlay.analysis.attribution.collective_facts import Total, rows
from outlay.analysis.attribution.program_facts import HostCopyFacts, MemoryFacts, RecomputedFacts, Segment
from outlay.analysis.findings.finding import Finding
from outlay.core.quantities import counted, format_bytes, format_flops, format_seconds, how_often
from outlay.report.explain.explain_words import MAX_ROWS, place
from outlay.report.html import templates

if TYPE_CHECKING:
    from outlay.report.explain.explanation import Explanation

_COLOURS = {"all-gather": 0, "all-reduce": 1, "reduce-scatter": 2, "all-to-all": 3, "collective-permute": 4}
"""Which of the page's colours a kind of collective has; others have the last."""

_THIN = 0.0005
"""Share of the step below which a stretch is not drawn: it would be thinner than a line."""


_VISIBLE = 0.05
"""Share of the memory from which on a bar of all of it shows what is used."""


def page(found: Explanation) -> str:
    """The explanation as a complete page."""
    return templates().get_template("explain.html.j2").render(view=_view(found))


def _view(found: Explanation) -> dict[str, Any]:
    where = [f"mesh {' × '.join(f'{name}={size}' for name, size in found.mesh.axes)}"] if found.mesh else []
    return {
        "title": found.name,
        "chips": [*where, *([str(found.target)] if found.target else [])],
        "simulated": found.mesh is not None and found.mesh.kind == "simulated",
        "fits": found.fits,
        "stats": _stats(found),
        "notes": [*found.incomplete],
        "remarks": found.notes,
        "lanes": _lanes(found),
        "operations": _operations(found),
        "assumed": found.estimate.assumptions if found.estimate else (),
        "findings": [
            {"kind": _kind(one), "text": one.text, "fix": one.fix, "severe": one.kind == "out-of-memory"}
            for one in found.findings
        ],
        "rows": _rows(found),
        "modules": _modules(found),
        "sums": [
            {"title": title, "entries": _entries(totals)}
            for title, totals in (
                ("By kind", found.by_kind()),
                ("By axis", found.by_axis()),
                ("By phase", found.by_phase()),
            )
        ],
        "host_copies": _host_copies(found.host_copies),
        "recomputed": _recomputed(found.recomputed),
        "memory": _memory(found.memory) if found.memory else None,
        "times": _times(found),
    }


def _kind(finding: Finding) -> str:
    return finding.kind if finding.num_alike == 1 else f"{finding.kind}, {how_often(finding.num_alike)}"


def _times(found: Explanation) -> str:
    compiled = "" if found.compile_seconds is None else f"Compiled in {format_seconds(found.compile_seconds)}, "
    return f"{compiled}{'read' if compiled else 'Read'} in {format_seconds(found.parse_seconds)}."


def _stats(found: Explanation) -> list[dict[str, str]]:
    memory, estimate, work = found.memory, found.estimate, found.work
    stats = []
    if memory is not None:
        of = f"of {format_bytes(memory.capacity)} a device" if memory.capacity else "on a device"
        stats.append(
            _stat("Peak memory", format_bytes(memory.peak), of if found.fits is not False else f"{of}: too much")
        )
    elif found.fits is False:
        stats.append(_stat("Peak memory", "too much", "the compiler gave up"))
    runs = sum(one.count for one in found.collectives)
    stats.append(_stat("Sent in a step", format_bytes(found.bytes_per_step), f"in {counted(runs, 'collective')}"))
    if estimate is not None:
        remark = f"{format_seconds(estimate.seconds_low)} to {format_seconds(estimate.seconds_high)}, estimated"
        stats.append(_stat("A step", format_seconds(estimate.seconds), remark))
    if work is not None:
        share = "" if work.flops is None else f"its share is {format_flops(work.flops)}"
        stats.append(_stat("Products", format_flops(work.flops_compiled), share or "on one device"))
    return stats


def _stat(name: str, value: str, remark: str) -> dict[str, str]:
    return {"name": name, "value": value, "remark": remark}


def _lanes(found: Explanation) -> dict[str, Any] | None:
    """Each lane's stretches where they stand; what the device waits for on another lane is drawn as such."""
    total = max((segment.begin + segment.seconds for segment in found.timeline), default=0.0)
    if not total or found.estimate is None:
        return None
    lanes: dict[str, list[dict[str, Any]]] = {"compute": []}
    for segment in found.timeline:
        if segment.seconds >= _THIN * total:
            lanes.setdefault(segment.lane, []).append(_span(segment, total))
    parts = found.estimate.parts
    hidden = f", {format_seconds(found.estimate.hidden)} of it behind computation" if found.estimate.hidden else ""
    return {
        "lanes": [{"name": name, "spans": spans} for name, spans in lanes.items()],
        "legend": [
            {"name": name, "value": format_seconds(part), "share": f"{part / found.estimate.seconds:.0%}"}
            for name, part in sorted(parts.items(), key=lambda item: -item[1])
            if part
        ],
        "remark": f"communication in all {format_seconds(parts['communication'] + found.estimate.hidden)}{hidden}",
    }


def _span(segment: Segment, total: float) -> dict[str, Any]:
    waits = segment.lane != "compute" and segment.waited > 0
    times = f", {segment.count} runs in a loop" if segment.loop else ""
    exposed = f", {format_seconds(segment.waited)} waited for" if waits else ""
    return {
        "colour": _colour(segment.kind),
        "left": round(100 * segment.begin / total, 3),
        "width": round(100 * segment.seconds / total, 3),
        "exposed": round(100 * min(segment.waited / segment.seconds, 1), 1) if waits else 0,
        "title": f"{segment.name or segment.kind}: {format_seconds(segment.seconds)}{exposed}{times}",
    }


def _operations(found: Explanation) -> list[dict[str, Any]]:
    most = max((one.seconds for one in found.operations), default=0.0)
    return [
        {
            "time": format_seconds(one.seconds),
            "bar": round(one.seconds / most, 4),
            "share": f"{one.share:.1%}",
            "bound_by": one.bound_by,
            "flops": format_flops(one.flops) if one.flops else "",
            "bytes": format_bytes(one.num_bytes),
            "runs": f"{one.runs:,}",
            "what": one.what,
            "place": place(one.source),
            "source": str(one.source or ""),
        }
        for one in found.operations
    ]


def _colour(kind: str) -> str:
    return "work" if kind == "compute" else f"s{_COLOURS.get(kind, 5)}"


def _rows(found: Explanation) -> list[dict[str, Any]]:
    lines = rows(found.collectives)
    most = max((row.total.bytes_per_step for row in lines), default=0)
    return [
        {
            "kind": row.kind,
            "colour": _colour(row.kind),
            "axes": row.axes,
            "bytes": format_bytes(row.total.bytes_per_step),
            "share": round(row.total.bytes_per_step / most, 4) if most else 0,
            "runs": f"{row.total.num_runs:,}{'' if row.is_exact else '+'}",
            "time": "" if row.total.seconds is None else format_seconds(row.total.seconds),
            "phase": row.phase,
            "what": row.what,
            "module": row.module,
            "place": place(row.source),
            "source": str(row.source or ""),
        }
        for row in lines
    ]


def _modules(found: Explanation) -> list[dict[str, Any]]:
    return [{**entry, "name": entry["name"] or "(no module known)"} for entry in _entries(found.by_module())]


def _entries(totals: dict[str, Total]) -> list[dict[str, Any]]:
    most = max((total.bytes_per_step for total in totals.values()), default=0)
    return [
        {
            "name": name,
            "colour": _colour(name) if name in _COLOURS else "s0",
            "bytes": format_bytes(total.bytes_per_step),
            "share": round(100 * total.bytes_per_step / most, 2) if most else 0,
            "runs": f"{total.num_runs:,}",
            "time": "" if total.seconds is None else format_seconds(total.seconds),
        }
        for name, total in totals.items()
    ]


def _host_copies(copies: Sequence[HostCopyFacts]) -> dict[str, Any] | None:
    """Copies to the host and back, by leaf or line; None where there are none."""
    if not copies:
        return None
    most, sent = max(one.bytes_per_step for one in copies), sum(one.bytes_per_step for one in copies if one.to_host)
    fetched = sum(one.bytes_per_step for one in copies) - sent
    return {
        "remark": f"{format_bytes(sent)} a step to the host, {format_bytes(fetched)} from it",
        "rows": [
            {
                "way": "to the host" if one.to_host else "from the host",
                "bytes": format_bytes(one.bytes_per_step),
                "share": round(one.bytes_per_step / most, 4) if most else 0,
                "runs": f"{one.count:,}",
                "what": one.leaf or f"a value, {one.phase}",
                "place": place(one.source),
                "source": str(one.source or ""),
            }
            for one in copies[:MAX_ROWS]
        ],
        "more": _more([one.bytes_per_step for one in copies[MAX_ROWS:]], format_bytes),
    }


def _recomputed(products: Sequence[RecomputedFacts]) -> dict[str, Any] | None:
    """Products that the backward pass computes again, by line; None where there are none."""
    if not products:
        return None
    most = max(one.flops_per_step for one in products)
    return {
        "remark": f"{format_flops(sum(one.flops_per_step for one in products))} a step",
        "rows": [
            {
                "flops": format_flops(one.flops_per_step),
                "share": round(one.flops_per_step / most, 4),
                "runs": f"{one.count:,}",
                "module": one.module or "(no module known)",
                "place": place(one.source),
                "source": str(one.source or ""),
            }
            for one in products[:MAX_ROWS]
        ],
        "more": _more([one.flops_per_step for one in products[MAX_ROWS:]], format_flops),
    }


def _more(rest: Sequence[float], words: Callable[[Any], str]) -> str:
    """What the rows leave out."""
    return f"and {counted(len(rest), 'more line')}, together {words(sum(rest))} a step" if rest else ""


def _memory(memory: MemoryFacts) -> dict[str, Any]:
    parts = [
        ("parameters", memory.params),
        ("optimizer", memory.optimizer),
        ("other state", memory.other_state),
        ("batch", memory.batch),
        ("temporaries", memory.temporaries),
        ("constants", memory.constants),
    ]
    used = max(memory.peak, sum(size for _, size in parts))
    # Of a step that leaves most of the memory free, the bar shows what it uses.
    whole = max(used, memory.capacity) if memory.capacity and used > _VISIBLE * memory.capacity else used
    left = whole - sum(size for _, size in parts)
    most = max((value.num_bytes for value in memory.largest), default=0)
    return {
        "parts": [
            {"name": name, "bytes": format_bytes(size), "percent": round(100 * size / whole, 3), "colour": f"s{i}"}
            for i, (name, size) in enumerate(parts)
            if size
        ],
        "left": round(100 * left / whole, 3) if whole else 0,
        "peak": format_bytes(memory.peak),
        "peak_percent": round(100 * memory.peak / whole, 3) if whole else 0,
        "capacity": format_bytes(memory.capacity) if memory.capacity else "",
        "arguments": format_bytes(memory.arguments),
        "outputs": format_bytes(memory.outputs),
        "on_host": format_bytes(memory.on_host) if memory.on_host else "",
        "donated": format_bytes(memory.donated),
        "largest": [
            {
                "bytes": format_bytes(value.num_bytes),
                "share": round(value.num_bytes / most, 4),
                "array": f"{value.dtype}{list(value.shape)}",
                "what": value.what,
                "place": place(value.source),
                "source": str(value.source or ""),
            }
            for value in memory.largest
        ],
    }
