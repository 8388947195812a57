"""A selection as a page: memory against time of every compiled candidate, the front of both, why the others lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from outlay.core.quantities import counted, format_bytes, format_seconds
from outlay.report.html import templates
from outlay.search.candidate_price import Price
from outlay.search.selection_text import notes, step_time

if TYPE_CHECKING:
    from outlay.search.selection import Considered, Selection

WIDTH, HEIGHT = 720, 340
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 14, 44
_NUM_COLOURS = 6
_FAR = 4  # times what the largest candidate needs: a device with more memory is not drawn to scale
_NUM_TICKS = 5


def page(selection: Selection) -> str:
    """The selection as a complete page."""
    return templates().get_template("choose.html.j2").render(view=_view(selection))


def _view(selection: Selection) -> dict[str, Any]:
    price = selection.chosen.price
    assert price is not None
    bases = dict.fromkeys(each.candidate.base_layout for each in selection if each.verdict not in _UNTRIED)
    colours = {layout: f"s{number % _NUM_COLOURS}" for number, layout in enumerate(bases)}
    tried = [each for each in selection if each.verdict not in _UNTRIED]
    front, unit = selection.pareto, "an example" if selection.is_per_sample else "a step"
    return {
        "title": f"{' '.join([selection.recipe, *selection.words])} on {selection.target}",
        "chosen": str(selection.chosen.candidate),
        "stats": [
            {"name": "A step", "value": format_seconds(price.seconds), "remark": step_time(price)},
            {
                "name": "Memory",
                "value": format_bytes(price.peak_bytes),
                "remark": f"of {format_bytes(price.capacity)} a device",
            },
            {
                "name": "Compiled",
                "value": str(len(selection.compiled)),
                "remark": f"of {counted(len(selection.considered), 'candidate')}",
            },
            {"name": "On the front", "value": str(len(front)), "remark": "no other needs less of both"},
        ],
        "notes": notes(selection),
        "unit": unit,
        "plot": _plot(selection.compiled, front, colours, tried, unit) if any(each.price for each in tried) else None,
        "colours": colours,
        "rows": [_row(number, each, front, colours, unit) for number, each in enumerate(tried, 1)],
        "parts": {name: f"s{at % _NUM_COLOURS}" for at, (name, part) in enumerate(price.parts.items()) if part},
        "left_out": [*_left_out(selection)],
        "commands": selection.commands(),
        "toml": selection.toml,
    }


_UNTRIED = ("not compiled", "ruled out")


def _row(
    number: int, each: Considered, front: Sequence[Considered], colours: dict[str, str], unit: str
) -> dict[str, Any]:
    price = _price(each, unit)
    total = sum(price.parts.values()) if price else 0.0
    return {
        "number": number,
        "colour": colours[each.candidate.base_layout],
        "candidate": each.candidate,
        "options": " ".join(each.candidate.all_words),
        "seconds": format_seconds(price.seconds) if price and price.parts else "",
        "memory": format_bytes(price.peak_bytes) if price else "",
        "parts": [
            {
                "colour": f"s{at % _NUM_COLOURS}",
                "percent": 100 * part / total,
                "title": f"{name} {format_seconds(part)}",
            }
            for at, (name, part) in enumerate(price.parts.items())
            if part
        ]
        if price and total
        else [],
        "verdict": each.verdict,
        "why": each.why,
        "is_on_front": each in front,
    }


def _left_out(selection: Selection) -> Iterator[dict[str, Any]]:
    """Candidates that were not compiled, by their reasons, the most frequent first."""
    waiting = [each for each in selection if each.verdict == "not compiled"]
    if waiting:
        yield {
            "head": f"{counted(len(waiting), 'candidate')} that the arithmetic ranks below, not compiled",
            "lines": [f"{each.candidate}: {each.why}" for each in waiting],
        }
    reasons = Counter(each.why for each in selection if each.verdict == "ruled out")
    if reasons:
        yield {
            "head": f"{counted(reasons.total(), 'candidate')} that the arithmetic rules out",
            "lines": [f"{count} × {why}" for why, count in reasons.most_common()],
        }


def _price(each: Considered, unit: str) -> Price | None:
    """The price of what times are compared of."""
    return each.price if unit == "a step" else each.price_per_sample


def _plot(
    compiled: Sequence[Considered],
    front: Sequence[Considered],
    colours: dict[str, str],
    tried: Sequence[Considered],
    unit: str,
) -> dict[str, Any]:
    """Where everything stands in the picture, in pixels from its upper left corner."""
    prices = [(each, price) for each in compiled if (price := _price(each, unit)) and price.parts]
    capacity = max(price.capacity for _, price in prices)
    most = max(price.peak_bytes for _, price in prices)
    is_far = most * _FAR < capacity  # then the candidates would stand in one place
    widest = 1.2 * most if is_far else 1.05 * max(capacity, most)
    limit = widest if is_far else capacity
    unit_of_memory = 2**30 if widest > 2**30 else 2**20
    longest = 1.1 * max(price.seconds for _, price in prices)

    def x(num_bytes: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * num_bytes / widest, 1)

    def y(seconds: float) -> float:
        return round(TOP + (HEIGHT - TOP - BOTTOM) * (1 - seconds / longest), 1)

    def point(price: Price) -> tuple[float, float]:
        return x(price.peak_bytes), y(price.seconds)

    corners = [point(price) for each in front if (price := _price(each, unit))]
    steps = [f"M{corners[0][0]},{TOP}", f"L{corners[0][0]},{corners[0][1]}"]
    steps += [f"H{right}V{below}" for right, below in corners[1:]]
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "frame": (LEFT, TOP, WIDTH - RIGHT, HEIGHT - BOTTOM),
        "capacity": x(limit),
        "capacity_words": f"{format_bytes(capacity)} a device" + (", far to the right" if is_far else ""),
        "front": "".join([*steps, f"H{x(limit)}"]),
        "points": [
            {
                "at": point(price),
                "number": tried.index(each) + 1,
                "colour": colours[each.candidate.base_layout],
                "kind": each.verdict.replace(" ", "-"),
                "title": f"{each.candidate}: {format_seconds(price.seconds)} {unit}, {format_bytes(price.peak_bytes)}",
            }
            for each, price in reversed(prices)
        ],
        "memory_ticks": [(x(size), format_bytes(size)) for size in _ticks(widest / unit_of_memory, unit_of_memory)],
        "time_ticks": [(y(size), format_seconds(size)) for size in _ticks(longest, 1.0)],
    }


def _ticks(largest: float, unit: float) -> list[float]:
    """Round numbers from 0 up to a largest one, about five of them.

    >>> _ticks(84.0, 1.0), _ticks(0.011, 1.0)
    ([0.0, 20.0, 40.0, 60.0, 80.0], [0.0, 0.002, 0.004, 0.006, 0.008, 0.01])
    """
    exponent = 0
    while largest / 10.0**exponent >= 10:
        exponent += 1
    while largest / 10.0**exponent < 1:
        exponent -= 1
    step = next(size for size in (0.2, 0.5, 1, 2) if largest / 10.0**exponent / size <= _NUM_TICKS + 1)
    return [
        round(number * step * 10.0**exponent, 12) * unit for number in range(int(largest / (step * 10.0**exponent)) + 1)
    ]
