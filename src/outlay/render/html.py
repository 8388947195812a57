"""Draw a report as a page: one file that loads nothing, so that it works offline and can be mailed."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Sequence
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup, escape

from outlay.render.page import Page
from outlay.render.pictures import Areas, Chart, Scatter

_WIDTH, _HEIGHT = 720, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 24, 14, 44
_FAR = 4  # times the largest x of a point: a limit beyond that is not drawn to scale
_NUM_TICKS = 5
_DOT = 20  # pixels from one number of a scatter to the next


def html_of_page(page: Page) -> str:
    """Return the report as a complete page."""
    return _templates().get_template("page.html.j2").render(page=page).lstrip()


@functools.cache
def _templates() -> jinja2.Environment:
    """Return the only environment: every page comes from its templates."""
    loader = jinja2.PackageLoader("outlay.render")
    # Strict, so that a misspelt name in a template is an error and not an empty place.
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.filters |= {"capital": _capital, "breaking": _breaking, "in_script": _in_script, "percent": _percent}
    environment.globals |= {"text_of": functools.cache(_text_of)}
    environment.globals |= {"scatter_view": _scatter_view, "areas_view": _areas_view, "chart_view": _chart_view}
    return environment


def _text_of(name: str) -> Markup:
    """Return a style sheet or a script as it stands: it is no template."""
    return Markup(resources.files("outlay.render").joinpath("templates", name).read_text(encoding="utf-8").rstrip("\n"))


def _capital(text: str) -> str:
    """Capitalize a title, but leave words such as `FLOPs` and paths as they are."""
    return text[:1].upper() + text[1:]


def _breaking(path: str) -> Markup:
    """Return a path that may break after its dots."""
    return Markup(escape(path).replace(".", Markup(".<wbr>")))


def _percent(share: float) -> str:
    return f"{100 * share:.3f}".rstrip("0").rstrip(".") + "%"


def _in_script(data: Any) -> Markup:
    """Return JSON that nothing inside can end early, whatever a path is called."""
    text = json.dumps(data, separators=(",", ":"))
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def _scatter_view(plot: Scatter) -> dict[str, Any]:
    """Return the positions of everything in the plot, in pixels from its upper left corner."""
    most = max(point.x for point in plot.points)
    is_far = most * _FAR < plot.limit  # to scale, the points would fall into one place
    widest = 1.1 * most if is_far else 1.05 * max(plot.limit, most)
    limit = widest if is_far else plot.limit
    unit = _unit(widest)
    longest = 1.1 * max(point.y for point in plot.points)

    def at(x: float, y: float) -> tuple[float, float]:
        across = _LEFT + (_WIDTH - _LEFT - _RIGHT) * x / widest
        return round(across, 1), round(_TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - y / longest), 1)

    places = [at(point.x, point.y) for point in plot.points]
    corners = [at(*corner) for corner in plot.front]
    path = [f"M{corners[0][0]},{_TOP}L{corners[0][0]},{corners[0][1]}", *(f"H{x}V{y}" for x, y in corners[1:])]
    return {
        "width": _WIDTH,
        "height": _HEIGHT,
        "frame": (_LEFT, _TOP, _WIDTH - _RIGHT, _HEIGHT - _BOTTOM),
        "limit": at(limit, 0)[0],
        "limit_title": plot.limit_title + (", far to the right" if is_far else ""),
        "front": "".join([*path, f"H{at(limit, 0)[0]}"]),
        "points": list(zip(plot.points, places, _apart(places), strict=True)),
        "x_ticks": [(at(size * unit, 0)[0], plot.format_x(size * unit)) for size in _ticks(widest / unit)],
        "y_ticks": [(at(0, size)[1], plot.format_y(size)) for size in _ticks(longest)],
    }


def _apart(places: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return where the numbers of dots stand: in their places, or beside them where they would cover one another.

    >>> _apart([(100.0, 100.0), (102.0, 100.0), (300.0, 100.0)])
    [(100.0, 100.0), (122.0, 100.0), (300.0, 100.0)]
    """
    taken: list[tuple[float, float]] = []
    for x, y in places:
        around = [(x, y)]
        for ring in (1, 2, 3):
            turns = (math.tau * part / (6 * ring) for part in range(6 * ring))
            around += [(x + _DOT * ring * math.cos(turn), y + _DOT * ring * math.sin(turn)) for turn in turns]
        inside = [at for at in around if _LEFT < at[0] < _WIDTH - _RIGHT and 0 < at[1] < _HEIGHT - _BOTTOM] or around
        free = next((at for at in inside if all(math.dist(at, other) >= _DOT - 1e-6 for other in taken)), inside[0])
        taken.append((round(free[0], 1), round(free[1], 1)))
    return taken


def _chart_view(chart: Chart) -> dict[str, Any]:
    """Return the chart as its script reads it; numbers have as many digits as can be told apart."""
    lines = [
        {"name": line.name, "x": [x for x, _ in line.points], "y": [_rounded(y) for _, y in line.points]}
        for line in chart.lines
    ]
    return {"title": chart.title, "x": chart.x_title, "unit": chart.unit, "lines": lines}


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def _areas_view(plot: Areas) -> dict[str, Any]:
    """Lay out the picture in pixels from its upper left corner."""
    totals = [sum(sizes) for sizes in plot.sizes]
    longest = 1.1 * (max(totals) or 1)
    width = (_WIDTH - _LEFT - _RIGHT) / len(totals)

    def at(stretch: float, size: float) -> tuple[float, float]:
        down = _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - size / longest)
        return round(_LEFT + width * stretch, 1), round(down, 1)

    below = [0.0] * len(totals)
    paths = []
    for layer, sizes in zip(plot.layers, zip(*plot.sizes, strict=True), strict=True):
        above = [low + size for low, size in zip(below, sizes, strict=True)]
        upper = [corner for number, size in enumerate(above) for corner in (at(number, size), at(number + 1, size))]
        lower = [corner for number, size in enumerate(below) for corner in (at(number, size), at(number + 1, size))]
        paths.append((layer, " ".join(f"{x},{y}" for x, y in (*upper, *reversed(lower)))))
        below = above
    unit = _unit(longest)
    return {
        "width": _WIDTH,
        "height": _HEIGHT,
        "frame": (_LEFT, _TOP, _WIDTH - _RIGHT, _HEIGHT - _BOTTOM),
        "paths": paths,
        "mark": at(plot.mark[0] + 0.5, totals[plot.mark[0]]),
        "stretches": [(at(number, 0)[0], round(width, 2), _areas_hint(plot, number)) for number in range(len(totals))],
        "x_ticks": [(at(share * len(totals), 0)[0], f"{share:.0%}") for share in (0, 0.25, 0.5, 0.75, 1)],
        "y_ticks": [(at(0, size * unit)[1], plot.format_y(size * unit)) for size in _ticks(longest / unit)],
    }


def _areas_hint(plot: Areas, number: int) -> str:
    sizes = plot.sizes[number]
    parts = [f"{layer.name} {plot.format_y(size)}" for layer, size in zip(plot.layers, sizes, strict=True) if size]
    return f"{number / len(plot.sizes):.0%}: {plot.format_y(sum(sizes))}: {', '.join(parts)}"


def _unit(largest: float) -> int:
    """Return the unit in which an axis has round numbers: bytes are counted in powers of two."""
    return next((size for size in (2**30, 2**20, 2**10) if largest > size), 1)


def _ticks(largest: float) -> list[float]:
    """Return round numbers from 0 up to the largest, about five of them.

    >>> _ticks(84.0), _ticks(0.011)
    ([0.0, 20.0, 40.0, 60.0, 80.0], [0.0, 0.002, 0.004, 0.006, 0.008, 0.01])
    """
    exponent = 0
    while largest / 10.0**exponent >= 10:
        exponent += 1
    while largest / 10.0**exponent < 1:
        exponent -= 1
    step = next(size for size in (0.2, 0.5, 1, 2) if largest / 10.0**exponent / size <= _NUM_TICKS + 1)
    step *= 10.0**exponent
    return [round(number * step, 12) for number in range(int(largest / step) + 1)]
