"""A choice in brief: the chosen one, the next best, and the first reasons."""

from __future__ import annotations

from dataclasses import dataclass, replace

from outlay.render.page import Line, Page
from outlay.render.report import Report
from outlay.search.selection import Selection

NUM_SHOWN = 6
"""Of how many candidates and reasons the text tells."""


@dataclass(frozen=True)
class BriefSelection(Report):
    """A choice in brief, for a terminal.

    Attributes:
        facts: all of it.
    """

    facts: Selection

    _text_width = Selection._text_width

    def _page(self) -> Page:
        page = self.facts.laid_out(NUM_SHOWN)
        return replace(page, blocks=[*page.blocks, Line("all candidates and reasons: --all, or --html FILE", "dim")])
