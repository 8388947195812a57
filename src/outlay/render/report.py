"""A base class for facts that print themselves: from blocks it makes text, a page and a view in a notebook."""

from __future__ import annotations

from markupsafe import escape

from outlay.core.table import Lines, to_text
from outlay.render.html import html_of_page
from outlay.render.page import Page
from outlay.render.text import text_of_page

_FRAME_HEIGHT = 720


class Report:
    """A base for facts that print themselves.

    `str()` gives text without colour, rich prints it with colour on a terminal, a notebook shows the page.
    """

    _text_width = 120
    """Columns of `str()`, which is read in files and logs."""

    def _page(self) -> Page:
        """Return the report, from which both text and page are drawn."""
        raise NotImplementedError

    def to_html(self) -> str:
        """Return a complete page in one file, which works offline."""
        return html_of_page(self._page())

    def _repr_html_(self) -> str:
        """Return the page as a frame: in a notebook its styles and script stay inside."""
        page = self._page()
        return (
            f'<iframe srcdoc="{escape(html_of_page(page))}" title="{escape(page.title)}" loading="lazy" '
            f'style="width:100%;height:{_FRAME_HEIGHT}px;border:0;border-radius:8px"></iframe>'
        )

    def __str__(self) -> str:
        return to_text(self, width=self._text_width)

    def __rich__(self) -> Lines:
        page = self._page()
        return Lines(lambda width: text_of_page(page, width))
