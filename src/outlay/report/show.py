"""`outlay.show`: show where every array lives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from outlay.core.error_types import ShowError
from outlay.core.suggest import did_you_mean
from outlay.render.page import Page
from outlay.render.report import Report
from outlay.report.array_blocks import Blocks
from outlay.report.collect import collect
from outlay.report.leaf import LeafFacts
from outlay.report.show_facts import Facts, Totals
from outlay.report.show_page import show_page


@dataclass(frozen=True)
class Show(Report):
    """Where every array of something lives: facts, and ways to read them.

    `str()` gives text without colour, rich prints it with colour on a terminal, a notebook shows the page.
    Indexing by path gives the facts of one leaf.

    Attributes:
        facts: everything in the report, as plain data.
    """

    facts: Facts

    # Nothing is wrapped in files and logs, so there is room for the reasons.
    _text_width = 200

    @property
    def leaves(self) -> tuple[LeafFacts, ...]:
        """The leaves in the order of the tree."""
        return self.facts.leaves

    @property
    def totals(self) -> Totals:
        """The state in numbers."""
        return self.facts.totals

    @property
    def notes(self) -> tuple[str, ...]:
        """What is worth knowing, in words with numbers."""
        return self.facts.notes

    @property
    def blocks(self) -> Blocks:
        """Which device holds which slice of the array that was shown.

        Raises:
            ShowError: several arrays were shown, or the array is not on a device.
        """
        leaf = self._only_leaf()
        if leaf.blocks is None:
            raise ShowError(f"no device holds any block of this array: it is {leaf.in_words} ({leaf.reason})")
        return leaf.blocks

    def __getitem__(self, path: str) -> LeafFacts:
        for leaf in self.leaves:
            if leaf.path == path:
                return leaf
        raise KeyError(f"no leaf {path!r}: {did_you_mean(path, [leaf.path for leaf in self.leaves])}")

    def __iter__(self) -> Iterator[LeafFacts]:
        return iter(self.leaves)

    def __len__(self) -> int:
        return len(self.leaves)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return self.facts.to_dict()

    def _page(self) -> Page:
        return show_page(self.facts)

    def _only_leaf(self) -> LeafFacts:
        if len(self.leaves) == 1:
            return self.leaves[0]
        example = f": show(x)[{self.leaves[0].path!r}].blocks" if self.leaves else ""
        raise ShowError(f"{len(self.leaves)} arrays were shown, so blocks are asked for by path{example}")


def show(x: Any, path: str | None = None) -> Show:
    """Show where every array of `x` lives: its shape on a device, its spec, its bytes, its copies, and why.

    Args:
        x: an array of any sharding, a `jax.ShapeDtypeStruct` with one (on an `AbstractMesh` no devices are needed), a
            pytree of those, a plan, or a program.
        path: show only the leaf at this dotted path, the leaves below it, or those that match it as a pattern.

    Raises:
        ShowError: `x` holds nothing that lives on devices, or nothing at `path`.

    Example:
        >>> mesh = outlay.mesh(x=2, y=4)
        >>> array = jax.device_put(np.ones((4, 8)), jax.NamedSharding(mesh, P("x", "y")))
        >>> outlay.show(array).blocks.by_position
        (((0,), (1,), (2,), (3,)), ((4,), (5,), (6,), (7,)))
        >>> print(outlay.show({"w": array, "b": np.ones(3)}, "w").leaves[0].in_words)
        split in 8
    """
    return Show(collect(x, path))
