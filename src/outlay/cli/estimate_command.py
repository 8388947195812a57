"""`outlay estimate`: estimate how long a step of a recipe takes on hardware that need not be attached."""

from __future__ import annotations

import typer

from outlay.cli.options import (
    CacheOption,
    ForceOption,
    HtmlOption,
    JsonOption,
    RecipeArgument,
    prepare_program,
    with_options,
)
from outlay.cli.output import check_outputs, print_facts, say, write_page
from outlay.recipes.program_options import ProgramOptions


@with_options(options=ProgramOptions)
def estimate(
    context: typer.Context,
    recipe: RecipeArgument,
    options: ProgramOptions,
    html: HtmlOption = None,
    force: ForceOption = False,
    cache: CacheOption = True,
    as_json: JsonOption = False,
) -> None:
    """Estimate the time of a step as a range, with all assumptions; `outlay explain` shows where the time goes.

    If the program does not fit on the target, the report ends with changes that should make it fit.
    """
    check_outputs(html, force=force)
    prepared = prepare_program(context, recipe, options)
    from outlay.recipes.ways_to_fit import describe_memory_options, memory_options
    from outlay.report.explain.explain import estimate as estimate_program
    from outlay.report.explain.explain import explain as explain_program

    explained = explain_program(prepared.program, target=options.target, cache=cache)
    compiler_options = str(options.compiler_options)
    ways = memory_options(prepared, explained, recipe, context.args, options.target, compiler_options, cache=cache)
    estimated = estimate_program(explained)
    if explained.from_cache:
        say("not compiled again: the compiler's output was read from the cache", err=True)

    for line in () if as_json else describe_memory_options(explained, ways, recipe, context.args, options.target):
        say(line, err=True)
    print_facts(estimated, as_json=as_json, ways_to_fit=[way.to_dict() for way in ways])
    write_page(html, estimated, force=force)
