"""A report as a page: one file without anything to load, so that it works offline and can be mailed."""

from __future__ import annotations

import functools
import json
from typing import Any

import jinja2
from markupsafe import Markup, escape

from outlay.report.page_view import leaves_view, page_view
from outlay.report.show_facts import Facts

_FRAME_HEIGHT = 720


def page(facts: Facts) -> str:
    """The report as a complete page."""
    template = templates().get_template("page.html.j2")
    return template.render(view=page_view(facts), data=_as_script(leaves_view(facts)))


def embedded(facts: Facts) -> str:
    """The page as a frame, for notebooks: its styles and its script stay inside."""
    return (
        f'<iframe srcdoc="{escape(page(facts))}" title="where every array lives" loading="lazy" '
        f'style="width:100%;height:{_FRAME_HEIGHT}px;border:0;border-radius:8px"></iframe>'
    )


@functools.cache
def templates() -> jinja2.Environment:
    """The templates of all pages."""
    loader = jinja2.PackageLoader("outlay.report")
    return jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)


def _as_script(data: dict[str, Any]) -> Markup:
    """JSON that nothing inside can end early, whatever a path is called."""
    text = json.dumps(data, separators=(",", ":"))
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))
