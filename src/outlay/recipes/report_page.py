"""`report.html`: one run on one page that works offline; the result, the loss, and where every array lived."""

from __future__ import annotations

import base64
from pathlib import Path

import jinja2

from outlay.layout.plan import Plan
from outlay.recipes.result import RunResult
from outlay.report.show import show


def report_page(result: RunResult, plan: Plan, picture: Path | None) -> str:
    """The page of a run.

    Args:
        result: what the run came to.
        plan: where every array lived.
        picture: the loss as a PNG; None for a run without a loss.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("outlay.recipes"), autoescape=True, undefined=jinja2.StrictUndefined
    )
    return environment.get_template("report.html").render(
        title=f"{result.recipe} under {result.layout}",
        facts=result.facts,
        sample=result.sample,
        picture=base64.b64encode(picture.read_bytes()).decode() if picture else None,
        plan=show(plan).to_html(),
    )
