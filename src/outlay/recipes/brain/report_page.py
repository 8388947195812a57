"""`report.html`: one run of a Brain on one page that works offline."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path

import jinja2

from outlay.layout.plan import Plan
from outlay.recipes.brain.activity import RASTER_MS, population_names
from outlay.recipes.brain.brain_run import BrainRun
from outlay.recipes.brain.result import BrainResult
from outlay.report.show import show

_TITLES = {
    "raster": ("Spikes", "A dot a spike, one band a population"),
    "rates": ("Rates", "Mean rate of each population over time"),
    "potentials": ("Potentials", "The first neurons of each population, relative to rest"),
    "weights": ("Weights", "Before and after the run, on a logarithmic scale"),
    "graph": ("Modules and connections", "What reads what, one step later"),
}

_WIDE = ("graph",)
"""Pictures with text too small for half a page."""


def report_page(result: BrainResult, run: BrainRun, plan: Plan, pictures: Mapping[str, Path]) -> str:
    """The page of a run.

    Args:
        result: what the run came to.
        run: the run.
        plan: where every array lived.
        pictures: PNG files by name.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("outlay.recipes"), autoescape=True, undefined=jinja2.StrictUndefined
    )
    return environment.get_template("brain_report.html").render(
        title=f"{result.recipe} under {result.layout}",
        facts=result.facts,
        populations=_populations(run),
        pictures=[
            {
                "title": _TITLES[name][0],
                "caption": _caption(name, run),
                "png": _encoded(path),
                "wide": name in _WIDE,
            }
            for name, path in pictures.items()
        ],
        plan=show(plan).to_html(),
    )


def _populations(run: BrainRun) -> list[dict[str, str]]:
    names = population_names(run.activity.num_neurons)
    types = {facts.name: facts.type for facts in run.brain.inspect().modules}
    return [
        {
            "name": name,
            "type": types[port.partition(":")[0]],
            "neurons": f"{run.activity.num_neurons[port]:,}",
            "spikes": f"{int(run.activity.counts(port).sum()):,}",
            "rate": f"{run.activity.rate(port):.1f}",
        }
        for port, name in names.items()
    ]


def _caption(name: str, run: BrainRun) -> str:
    caption = _TITLES[name][1]
    is_cut = name == "raster" and run.num_steps * run.brain.dt > RASTER_MS
    return f"{caption}; the last {RASTER_MS:g} ms" if is_cut else caption


def _encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
