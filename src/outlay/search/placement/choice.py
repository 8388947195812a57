"""Which arrangement of a graph to take, and what was compared, as facts that print themselves."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Group

from outlay.core.table import to_text
from outlay.search.placement.costs import Costs, Expected
from outlay.search.placement.placement_text import lines, page


@dataclass(frozen=True)
class Way:
    """One way to run a graph.

    Attributes:
        layout: `one device`, `by-module`, `by-rows` (or what the recipe calls it) or `copies`.
        num_devices: how many devices it takes.
        expected: what a step would take.
        placement: the device of each part, where each has its own.
        measured: seconds of a step as it was run; None where it was not.
    """

    layout: str
    num_devices: int
    expected: Expected
    placement: Mapping[str, int] | None = None
    measured: float | None = None

    @property
    def seconds(self) -> float:
        """Of a step: as measured, else as expected."""
        return self.expected.seconds if self.measured is None else self.measured

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready data."""
        return {
            "layout": self.layout,
            "num_devices": self.num_devices,
            "seconds": self.seconds,
            "expected": self.expected.seconds,
            "measured": self.measured,
            "work": self.expected.work,
            "exchange": self.expected.exchange,
            "num_bytes": self.expected.num_bytes,
            "placement": dict(self.placement) if self.placement is not None else None,
        }


@dataclass(frozen=True)
class PlacementChoice:
    """The arrangement chosen for a graph, and what it was compared with; made by `outlay.choose`.

    Attributes:
        recipe: the recipe as the user named it.
        words: the options that the user gave it.
        target: the target, as text.
        costs: what the parts cost.
        ways: everything that was compared, the fastest first, and those first that were measured.
        together: measured seconds of a step of all parts in one program on one device; None where nothing was measured.
        by_rows: what the recipe calls its layout that splits rows; empty where it has none.
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
        """What to take."""
        return self.ways[0]

    @property
    def placed(self) -> Way:
        """The best placement of whole parts, which may be all on one device; it is what the layout file holds."""
        return next(way for way in self.ways if way.placement is not None)

    def of(self, layout: str) -> Way | None:
        """The best way of one kind."""
        return next((way for way in self.ways if way.layout == layout), None)

    def commands(self, file: str | None = None) -> tuple[str, ...]:
        """Command lines to go on with.

        Args:
            file: where the layout was written; `THIS_FILE` stands for it without.
        """
        found = [["--layout", file or "THIS_FILE", "--mode", "placed", *self._devices(self.placed)]]
        if self.by_rows and self.chosen.layout == self.by_rows:
            found.insert(0, ["--layout", self.by_rows, *self._devices(self.chosen)])
        return tuple(shlex.join(["outlay", "run", self.recipe, *self.words, *options]) for options in found)

    def _devices(self, way: Way) -> list[str]:
        return ["--devices", str(way.num_devices)] if self.target.startswith("cpu:") else []

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready data."""
        costs = self.costs
        return {
            "recipe": self.recipe,
            "words": list(self.words),
            "target": self.target,
            "chosen": self.chosen.to_dict(),
            "ways": [way.to_dict() for way in self.ways],
            "parts": dict(costs.seconds),
            "is_measured": costs.is_measured,
            "best_gain": costs.best_gain,
            "largest": costs.largest,
            "together": self.together,
            "per_place": costs.per_place,
            "per_transfer": costs.per_transfer,
            "num_cores": costs.num_cores,
            "toml": self.toml,
            "commands": list(self.commands()),
            "seconds": self.seconds,
        }

    def to_html(self) -> str:
        """As a page that needs nothing else."""
        return page(self)

    def _repr_html_(self) -> str:
        return self.to_html()

    def __str__(self) -> str:
        return to_text(self, width=120)

    def __rich__(self) -> Group:
        return lines(self)
