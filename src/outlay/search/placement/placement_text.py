"""A choice of a placement as text and as a page: the answer, the parts, and everything that it was compared with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from outlay.core.quantities import counted, format_bytes, format_seconds
from outlay.core.table import table
from outlay.report.html import templates

if TYPE_CHECKING:
    from outlay.search.placement.choice import PlacementChoice, Way


def lines(choice: PlacementChoice) -> Group:
    """A choice as rich renderables."""
    shown: list[Any] = [Text(headline(choice), style="bold green"), Text(because(choice)), Text()]
    shown += [_parts(choice), Text(_bound(choice)), Text(), _ways(choice), Text()]
    return Group(*shown, *(Text(f"note: {note}", style="dim") for note in notes(choice)))


def page(choice: PlacementChoice) -> str:
    """A choice as a complete page."""
    part_columns, parts = _part_rows(choice)
    way_columns, ways = _way_rows(choice)
    return (
        templates()
        .get_template("choose_placement.html.j2")
        .render(
            title=headline(choice),
            because=because(choice),
            tables=[
                {"head": "What each part costs", "columns": part_columns, "rows": parts, "remark": _bound(choice)},
                {"head": "What was compared", "columns": way_columns, "rows": ways, "remark": ""},
            ],
            notes=list(notes(choice)),
            commands=choice.commands(),
            toml=choice.toml,
        )
    )


def headline(choice: PlacementChoice) -> str:
    """The answer in a sentence."""
    way, one = choice.chosen, choice.of("one device")
    assert one is not None
    spent = format_seconds(way.seconds)
    if way is one:
        return f"{choice.target}: one device is best, about {spent} a step"
    gain = f"{_times(one.seconds / way.seconds)} as fast as one device"
    return f"{choice.target}: {way.layout} on {counted(way.num_devices, 'device')}, about {spent} a step, {gain}"


def because(choice: PlacementChoice) -> str:
    """Why, with the numbers."""
    way = choice.chosen
    if way.layout != "one device":
        return (
            f"the busiest device computes {format_seconds(way.expected.work)} a step, and exchanges cost "
            f"{format_seconds(way.expected.exchange)}"
        )
    other = next((one for one in choice.ways if one.layout not in ("one device", "copies")), None)
    if other is None:
        return "there is one part, or one device"
    where = f"{other.layout} on {counted(other.num_devices, 'device')}"
    if other.measured is not None:
        return f"{where}, which comes next, took {format_seconds(other.measured)} a step"
    return (
        f"{where}, which comes next, computes for {format_seconds(other.expected.work)} and exchanges for "
        f"{format_seconds(other.expected.exchange)} a step"
    )


def notes(choice: PlacementChoice) -> Iterator[str]:
    """What limits the answer."""
    costs = choice.costs
    if not costs.is_measured:
        yield f"nothing was measured, since {choice.target} is not attached: parts and exchanges are estimates"
    else:
        yield (
            f"measured here: the parts alone, {format_seconds(costs.per_place)} for each place and "
            f"{format_seconds(costs.per_transfer)} for each array sent, from which the expected times follow; then the "
            "best way of each kind, as a whole"
        )
    if choice.together is not None:
        yield f"all parts in one program on one device, measured: {format_seconds(choice.together)} a step"
    if costs.num_cores is not None:
        yield (
            f"simulated devices share this machine's {counted(costs.num_cores, 'core')}, which is counted: on "
            "devices of their "
            f"own the best placement could be up to {costs.best_gain:.1f}x as fast as one"
        )
    if choice.by_rows and choice.chosen.layout == choice.by_rows:
        yield f"the layout file holds the best placement of whole parts; {choice.by_rows} needs no file"


def _bound(choice: PlacementChoice) -> str:
    costs = choice.costs
    share = costs.seconds[costs.largest] / (costs.one_device or 1.0)
    return (
        f"{costs.largest} takes {share:.0%} of the time, so no placement part by part can be faster than "
        f"{costs.best_gain:.1f}x one device (sum / max)"
    )


def _parts(choice: PlacementChoice) -> Any:
    columns, rows = _part_rows(choice)
    return table(columns, rows, right=columns[1:])


def _part_rows(choice: PlacementChoice) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    costs, placement = choice.costs, choice.placed.placement or {}
    rows = [
        (name, format_seconds(spent), f"{spent / (costs.one_device or 1.0):.0%}", str(placement[name]))
        for name, spent in costs.seconds.items()
    ]
    rows.append(("sum", format_seconds(costs.one_device), "", ""))
    how = "measured" if costs.is_measured else "estimated"
    return ("part", how, "share", "device in the file"), rows


def _ways(choice: PlacementChoice) -> Any:
    columns, rows = _way_rows(choice)
    return table(columns, rows, right=columns[1:-1])


def _way_rows(choice: PlacementChoice) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    one = choice.of("one device")
    assert one is not None
    measured = ("measured",) if choice.costs.is_measured else ()
    columns = ("layout", "devices", *measured, "expected", "computing", "exchange", "sent", "speed", "")
    rows = [_row(way, one, is_first=way is choice.chosen, with_measured=bool(measured)) for way in choice.ways]
    return columns, rows


def _row(way: Way, one: Way, *, is_first: bool, with_measured: bool) -> tuple[str, ...]:
    expected = way.expected
    measured = "" if way.measured is None else format_seconds(way.measured)
    # Times that were computed are no match for those that were measured.
    is_alike = (way.measured is None) == (one.measured is None)
    return (
        way.layout,
        str(way.num_devices),
        *([measured] if with_measured else []),
        format_seconds(expected.seconds),
        format_seconds(expected.work),
        format_seconds(expected.exchange),
        format_bytes(expected.num_bytes),
        _times(one.seconds / way.seconds) if is_alike and way.seconds else "",
        "chosen" if is_first else "",
    )


def _times(ratio: float) -> str:
    return f"{ratio:.2f}x"
