"""The arrangement chosen for a graph, and what it was compared with, as facts that print themselves."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from outlay.core.quantities import counted, format_bytes, format_seconds
from outlay.render.page import Code, Column, Line, Notes, Page, Row, Section, Table
from outlay.render.report import Report, as_json, fields_as_json
from outlay.search.placement.costs import Costs, Expected


@dataclass(frozen=True)
class Way:
    """One way to run a graph.

    Attributes:
        layout: `one device`, `by-module`, `by-rows` (or what the recipe calls it) or `copies`.
        num_devices: how many devices it uses.
        expected: the expected time of a step.
        placement: the device of each part, if parts are placed one by one.
        measured: measured seconds of a step; None if it was not run.
    """

    layout: str
    num_devices: int
    expected: Expected
    placement: Mapping[str, int] | None = None
    measured: float | None = None

    @property
    def seconds(self) -> float:
        """The time of a step: measured, or else expected."""
        return self.expected.seconds if self.measured is None else self.measured

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {
            **fields_as_json(self),
            "seconds": self.seconds,
            "expected": self.expected.seconds,
            "work": self.expected.work,
            "exchange": self.expected.exchange,
            "num_bytes": self.expected.num_bytes,
        }


@dataclass(frozen=True)
class PlacementChoice(Report):
    """The arrangement chosen for a graph, and what it was compared with; returned by `outlay.choose`.

    Attributes:
        recipe: the recipe as the user named it.
        words: the options that the user gave it.
        target: the target, as text.
        costs: the costs of the parts.
        ways: everything that was compared, the measured ones first, and the fastest first.
        together: measured seconds of a step with all parts in one program on one device; None if nothing was measured.
        by_rows: the recipe's name for its layout that splits rows; empty if it has none.
        toml: the layout of the best placement, one device included, with its mesh, as the text of a layout file.
        seconds: how long it took to choose.
    """

    recipe: str
    words: tuple[str, ...]
    target: str
    costs: Costs
    ways: tuple[Way, ...]
    together: float | None
    by_rows: str
    toml: str
    seconds: float

    @property
    def chosen(self) -> Way:
        """The way to take."""
        return self.ways[0]

    @property
    def placed(self) -> Way:
        """The best placement of whole parts, perhaps all on one device; the layout file holds it."""
        return next(way for way in self.ways if way.placement is not None)

    def of(self, layout: str) -> Way | None:
        """Return the best way of one kind."""
        return next((way for way in self.ways if way.layout == layout), None)

    def commands(self, file: str | None = None) -> tuple[str, ...]:
        """Return command lines to continue with.

        Args:
            file: where the layout was written; without it, `THIS_FILE` stands for the name.
        """
        commands = [["--layout", file or "THIS_FILE", "--mode", "placed", *self._devices(self.placed)]]
        if self.by_rows and self.chosen.layout == self.by_rows:
            # What was chosen comes first; the file holds the best placement of whole parts.
            commands.insert(0, ["--layout", self.by_rows, *self._devices(self.chosen)])
        return tuple(shlex.join(["outlay", "run", self.recipe, *self.words, *options]) for options in commands)

    def _devices(self, way: Way) -> list[str]:
        return ["--devices", str(way.num_devices)] if self.target.startswith("cpu:") else []

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        costs = self.costs
        return {
            **fields_as_json(self, "costs", "by_rows"),
            "chosen": self.chosen.to_dict(),
            "parts": as_json(costs.seconds),
            "is_measured": costs.is_measured,
            "best_gain": costs.best_gain,
            "largest": costs.largest,
            "per_group": costs.per_group,
            "per_transfer": costs.per_transfer,
            "num_cores": costs.num_cores,
            "commands": list(self.commands()),
        }

    @property
    def headline(self) -> str:
        """The answer in one sentence."""
        way, one = self.chosen, self.of("one device")
        assert one is not None
        spent = format_seconds(way.seconds)
        if way is one:
            return f"{self.target}: one device is best, about {spent} a step"
        gain = f"{one.seconds / way.seconds:.2f}x as fast as one device"
        return f"{self.target}: {way.layout} on {counted(way.num_devices, 'device')}, about {spent} a step, {gain}"

    @property
    def because(self) -> str:
        """The reason, with the numbers."""
        way = self.chosen
        if way.layout != "one device":
            return (
                f"the busiest device computes {format_seconds(way.expected.work)} a step, and exchanges cost "
                f"{format_seconds(way.expected.exchange)}"
            )
        other = next((one for one in self.ways if one.layout not in ("one device", "copies")), None)
        if other is None:
            return "there is one part, or one device"
        where = f"{other.layout} on {counted(other.num_devices, 'device')}"
        if other.measured is not None:
            return f"{where}, which comes next, took {format_seconds(other.measured)} a step"
        return (
            f"{where}, which comes next, computes for {format_seconds(other.expected.work)} and exchanges for "
            f"{format_seconds(other.expected.exchange)} a step"
        )

    @property
    def notes(self) -> Iterator[str]:
        """Yield what limits the answer."""
        costs = self.costs
        if not costs.is_measured:
            yield f"nothing was measured, since {self.target} is not attached: parts and exchanges are estimates"
        else:
            yield (
                f"measured here: the parts alone, {format_seconds(costs.per_group)} for each group and "
                f"{format_seconds(costs.per_transfer)} for each array sent; the expected times follow from these. Then "
                "the best way of each kind was run as a whole"
            )
        if self.together is not None:
            yield f"all parts in one program on one device, measured: {format_seconds(self.together)} a step"
        if costs.num_cores is not None:
            yield (
                f"simulated devices share this machine's {counted(costs.num_cores, 'core')}, which the times "
                "include: on devices of their own the best placement could be up to "
                f"{costs.best_gain:.1f}x as fast as one"
            )
        if self.by_rows and self.chosen.layout == self.by_rows:
            yield f"the layout file holds the best placement of whole parts; {self.by_rows} needs no file"

    def _page(self) -> Page:
        return Page(
            self.headline,
            [
                Line(self.because),
                Section("what each part costs", [self._part_table(), Line(self.costs.bound)]),
                Section("what was compared", [self._way_table()]),
                Notes(list(self.notes)),
                Section("continue with it", [Code("\n".join(self.commands()))], medium="html"),
                Section("its layout", [Code(self.toml)], medium="html"),
            ],
            headline_style="good",
        )

    def _part_table(self) -> Table:
        costs, placement = self.costs, self.placed.placement or {}
        heads = ("measured" if costs.is_measured else "estimated", "share", "device in the file")
        rows = [
            Row([name, format_seconds(spent), f"{costs.share(name):.0%}", str(placement[name])])
            for name, spent in costs.seconds.items()
        ]
        rows.append(Row(["sum", format_seconds(costs.sum), "", ""], "strong"))
        return Table([Column("part"), *(Column(head, "number") for head in heads)], rows)

    def _way_table(self) -> Table:
        one = self.of("one device")
        assert one is not None
        columns = [
            (Column("layout"), lambda way: way.layout),
            (Column("devices", "number"), lambda way: str(way.num_devices)),
            *([(Column("measured", "number"), _measured)] if self.costs.is_measured else []),
            (Column("expected", "number"), lambda way: format_seconds(way.expected.seconds)),
            (Column("computing", "number"), lambda way: format_seconds(way.expected.work)),
            (Column("exchange", "number"), lambda way: format_seconds(way.expected.exchange)),
            (Column("sent", "number"), lambda way: format_bytes(way.expected.num_bytes)),
            (Column("speed", "number"), lambda way: self._speed(way, one)),
            (Column(""), lambda way: "chosen" if way is self.chosen else ""),
        ]
        return Table.of(self.ways, columns, style=lambda way: "strong" if way is self.chosen else "")

    def _speed(self, way: Way, one: Way) -> str:
        # Computed times cannot be compared with measured ones.
        is_alike = (way.measured is None) == (one.measured is None)
        return f"{one.seconds / way.seconds:.2f}x" if is_alike and way.seconds else ""


def _measured(way: Way) -> str:
    return "" if way.measured is None else format_seconds(way.measured)
