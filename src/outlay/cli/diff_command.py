"""`outlay diff`: what differs between two layouts of a recipe, two environments or options, or two saved reports."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outlay.cli.environments import Environment, compared, verdict_code
from outlay.cli.failures import CHECK_FAILED
from outlay.cli.options import (
    CacheOption,
    ForceOption,
    HtmlOption,
    JsonOption,
    load_recipe,
    own_options,
    with_options,
)
from outlay.cli.output import check_outputs, print_facts, say, write_page
from outlay.recipes.program_options import ProgramOptions

if TYPE_CHECKING:
    from outlay.report.explain.explain_diff import Saved


@with_options(options=ProgramOptions)
def diff(
    context: typer.Context,
    before: Annotated[
        str,
        typer.Argument(
            metavar="A",
            help="A report (outlay explain --json), a layout of --recipe, or with --env or --against the recipe.",
        ),
    ],
    after: Annotated[str | None, typer.Argument(metavar="B", help="Another report, or layout.")] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            "--recipe",
            metavar="RECIPE",
            help="Compare two of its layouts, by name or as TOML files; other options go to the recipe.",
        ),
    ] = None,
    *,
    env: Annotated[
        Path | None,
        typer.Option("--env", metavar="VENV", help="Compare the recipe A here and in this Python environment."),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            "--against", metavar="OPTIONS", help="Compare the recipe A with --compiler-options, and with these."
        ),
    ] = None,
    numbers: Annotated[
        bool, typer.Option("--numbers/--no-numbers", help="With --env or --against: whether to verify both sides.")
    ] = True,
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

    Both are compiled; neither is run. With --fail-if, only a limit that is exceeded ends it with 1. With --env or
    --against, both sides are verified as well: numbers that are not one device's end it with 1, and with 3 if that is
    unknown; the times to trace and compile are told, and end it only by a limit.
    """
    if markdown and as_json:
        raise typer.BadParameter("it cannot be combined with --json", param_hint="--markdown")
    check_outputs(html, force=force)
    from outlay.report.explain.diff_limits import broken_limits, read_limit
    from outlay.report.explain.explain_diff import diff_reports

    limits = [read_limit(text) for text in fail_if or ()]
    verdicts: tuple[str, ...] | None = None
    if env is not None or against is not None:
        names, (old, new), verdicts = _of_one_recipe(context, before, after, recipe, options, env, against, numbers)
    else:
        names = (before, _second(after))
        old, new = _of_two(context, names, recipe, options, cache)
    differing, broken = diff_reports(old, new, names, numbers=verdicts), broken_limits(limits, old, new)
    if markdown:
        say(differing.to_markdown(broken))
    else:
        print_facts(differing, as_json=as_json, same=not differing, broken=list(broken))
    for sentence in broken:
        say(f"over the limit {sentence}", err=True)
    write_page(html, differing, force=force)
    raise typer.Exit(CHECK_FAILED if (broken if limits else differing) else verdict_code(verdicts or ()))


def _second(after: str | None) -> str:
    if after is None:
        raise typer.BadParameter("give two reports, two layouts of --recipe, or a recipe with --env", param_hint="B")
    return after


def _of_two(
    context: typer.Context, names: tuple[str, str], recipe: str | None, options: ProgramOptions, cache: bool
) -> list[Saved]:
    """Return the reports of two files, or of two layouts of a recipe."""
    from outlay.report.explain.explain_diff import read_report

    if recipe is None:
        if odd := [*options.given(), *context.args]:
            raise typer.BadParameter("reports are compiled already: it goes with --recipe", param_hint=odd[0])
        return [read_report(Path(name)) for name in names]
    if options.layout is not None:
        raise typer.BadParameter("the layouts are A and B", param_hint="--layout")
    from outlay.recipes.prepare import prepare_with
    from outlay.report.explain.explain import explain

    loaded = load_recipe(context, recipe, options)
    programs = [prepare_with(loaded, replace(options, layout=layout)).program for layout in names]
    return [explain(program, cache=cache).to_dict() for program in programs]


def _of_one_recipe(
    context: typer.Context,
    recipe: str,
    after: str | None,
    other: str | None,
    options: ProgramOptions,
    env: Path | None,
    against: str | None,
    numbers: bool,
) -> tuple[tuple[str, str], list[dict[str, Any]], tuple[str, ...]]:
    """Return the names of the two sides, their reports, and their verdicts."""
    # typer takes the first of the recipe's own options for the second argument.
    of_recipe = [*([after] if after is not None else []), *context.args]
    if other is not None or (of_recipe and not of_recipe[0].startswith("-")):
        odd = other or of_recipe[0]
        raise typer.BadParameter(f"one recipe is compared: {odd} is one too many", param_hint="--env or --against")
    own_options(context, recipe)
    here = Environment.at(None)
    there = Environment.at(env) if env is not None else here
    second = options if against is None else replace(options, compiler_options=against)
    from outlay.devices.target import Target

    simulated = "cpu" if options.devices else ""
    kind = Target.parse(options.target).hardware.kind if options.target else simulated
    names = [here.named(there, kind), there.named(here, kind)] if there is not here else ["", ""]
    if against is not None:
        both = (str(options.compiler_options), against)
        names = [f"{name}, {how}" if name else how for name, how in zip(names, both, strict=True)]
    words = [[recipe, *of_recipe, *each.words()] for each in (options, second)]
    reports, verdicts = compared(list(zip(names, (here, there), words, strict=True)), numbers=numbers)
    return (names[0], names[1]), reports, verdicts
