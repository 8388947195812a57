"""`outlay diff`: what differs between two layouts of a recipe, or between two saved reports."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from outlay.cli.failures import CHECK_FAILED
from outlay.cli.options import (
    CacheOption,
    ForceOption,
    HtmlOption,
    JsonOption,
    ProgramOptions,
    load_recipe,
    with_program_options,
)
from outlay.cli.output import check_outputs, print_facts, say, write_page


@with_program_options(without="layout")
def diff(
    context: typer.Context,
    before: Annotated[
        str, typer.Argument(metavar="A", help="A report (outlay explain --json), or a layout of --recipe.")
    ],
    after: Annotated[str, typer.Argument(metavar="B", help="Another of the same kind.")],
    recipe: Annotated[
        str | None,
        typer.Option(
            "--recipe",
            metavar="RECIPE",
            help="Compare two of its layouts, by name or as TOML files; other options go to the recipe.",
        ),
    ] = None,
    *,
    options: ProgramOptions,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-if",
            metavar="LIMIT",
            help="Exit with 1 only above this, such as memory>+2%, all-gather>+0 or time>5ms; may be repeated.",
        ),
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, for a comment in review.")] = False,
    html: HtmlOption = None,
    force: ForceOption = False,
    cache: CacheOption = True,
    as_json: JsonOption = False,
) -> None:
    """Compare memory and time, and by line what is moved; exit code 0 if all is the same, 1 if not.

    Both layouts are compiled; neither is run. With --fail-if, only a limit that is exceeded ends it with 1.
    """
    if markdown and as_json:
        raise typer.BadParameter("it cannot be combined with --json", param_hint="--markdown")
    check_outputs(html, force=force)
    from outlay.report.explain.diff_limits import broken_limits, read_limit
    from outlay.report.explain.explain_diff import diff_reports, read_report

    limits = [read_limit(text) for text in fail_if or ()]
    if recipe is None:
        if odd := [*options.given(), *context.args]:
            raise typer.BadParameter("reports are compiled already: it goes with --recipe", param_hint=odd[0])
        reports = [read_report(Path(name)) for name in (before, after)]
    else:
        from outlay.report.explain.explain import explain

        loaded = load_recipe(context, recipe, options)
        programs = [replace(options, layout=layout).prepare(loaded).program for layout in (before, after)]
        reports = [explain(program, cache=cache).to_dict() for program in programs]
    old, new = reports
    differing, broken = diff_reports(old, new, (before, after)), broken_limits(limits, old, new)
    if markdown:
        say(differing.to_markdown(broken))
    else:
        print_facts(differing, as_json=as_json, same=not differing, broken=list(broken))
    for sentence in broken:
        say(f"over the limit {sentence}", err=True)
    write_page(html, differing, force=force)
    raise typer.Exit(CHECK_FAILED if (broken if limits else differing) else 0)
