"""`outlay runs`: list the runs in a folder, and compare them on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outlay.cli.options import ForceOption, HtmlOption, JsonOption
from outlay.cli.output import check_outputs, print_facts, write_page


def runs(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[DIR]...", help="Run folders, or folders that hold some; by default runs."),
    ] = None,
    html: HtmlOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """List runs with their state, metrics, speed and goodput, and compare them on one page; reads files only."""
    check_outputs(html, force=force)
    from outlay.report.compare_runs import Runs
    from outlay.train.run_record import RunRecord, runs_below

    paths = [path for folder in folders or [Path("runs")] for path in runs_below(folder)]
    records = [RunRecord(path) for path in dict.fromkeys(paths)]
    records.sort(key=lambda record: (-record.sessions[0].began if record.sessions else 0.0, str(record.path)))
    facts = Runs([str(record.path) for record in records], records)
    print_facts(facts, as_json=as_json)
    write_page(html, facts, force=force)
