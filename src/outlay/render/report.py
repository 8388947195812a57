"""A base class for facts that print themselves: in a line, as text, as a page, in a notebook, and as JSON.

What draws text and pages is imported when something is drawn: plans and programs are facts too, often never shown.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from outlay.core.one_line import OneLine

if TYPE_CHECKING:
    from outlay.render.page import Page

_FRAME_HEIGHT = 720


def as_json(facts: Any) -> Any:
    """Return JSON-ready data: of facts their `to_dict()`, or else their fields by name; of several a list or a dict.

    >>> as_json({"axes": ("data", "model")})
    {'axes': ['data', 'model']}
    """
    if hasattr(facts, "to_dict"):
        return facts.to_dict()
    if dataclasses.is_dataclass(facts):
        return fields_as_json(facts)
    if isinstance(facts, Mapping):
        return {name: as_json(one) for name, one in facts.items()}
    return [as_json(one) for one in facts] if isinstance(facts, list | tuple) else facts


def fields_as_json(facts: Any, *left_out: str) -> dict[str, Any]:
    """Return the fields of a dataclass as JSON-ready data, except the named ones."""
    # Not by `dataclasses.asdict`, which would also copy what is left out, such as a whole compiled program.
    names = [field.name for field in dataclasses.fields(facts)]
    return {name: as_json(getattr(facts, name)) for name in names if name not in left_out}


class Report(OneLine):
    """A base for facts that print themselves.

    `repr()` gives one line, `str()` text without colour, rich prints it with colour on a terminal, a notebook shows the
    page.
    """

    _text_width = 120
    """Columns of `str()`, which is read in files and logs."""

    def __getattr__(self, name: str) -> Any:
        if hasattr(type(self), name):  # it failed itself, with an error of its own
            return object.__getattribute__(self, name)
        what = f"{type(self).__name__!r} object has no attribute {name!r}"
        if name.startswith("_"):  # copying, pickling and notebooks ask whether there is one
            raise AttributeError(what)
        from outlay.core.guesses import attribute_guess
        from outlay.core.suggest import did_you_mean

        if fix := attribute_guess(type(self), name):
            raise AttributeError(f"{what}\n  fix: {fix}")

        raise AttributeError(f"{what}: {did_you_mean(name, [each for each in dir(self) if not each.startswith('_')])}")

    def _page(self) -> Page:
        """Return the report, from which both text and page are drawn."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return fields_as_json(self)

    def _in_short(self) -> str:
        page = self._page()
        return page.headline or page.title

    def to_html(self) -> str:
        """Return a complete page in one file, which works offline."""
        from outlay.render.html import html_of_page

        return html_of_page(self._page())

    def _repr_html_(self) -> str:
        """Return the page as a frame: in a notebook its styles and script stay inside."""
        from markupsafe import escape

        from outlay.render.html import html_of_page

        page = self._page()
        return (
            f'<iframe srcdoc="{escape(html_of_page(page))}" title="{escape(page.title)}" loading="lazy" '
            f'style="width:100%;height:{_FRAME_HEIGHT}px;border:0;border-radius:8px"></iframe>'
        )

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """Return what a notebook shows: the page, and the text for terminals and files that show no pages."""
        return {"text/plain": str(self), "text/html": self._repr_html_()}

    def __str__(self) -> str:
        from outlay.core.terminal_text import to_text

        return to_text(self, width=self._text_width)

    def __rich__(self) -> Any:
        from rich.text import Text

        from outlay.core.terminal_text import Lines
        from outlay.render.text import text_of_page

        if type(self).__str__ is not Report.__str__:  # its text is not that of its page
            return Text(str(self))
        page = self._page()
        return Lines(lambda width: text_of_page(page, width))
