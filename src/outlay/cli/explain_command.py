"""`outlay explain`: show what the compiler makes of a recipe or of a saved program. Nothing is run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outlay.cli.failures import CHECK_FAILED
from outlay.cli.options import (
    AllOption,
    CacheOption,
    ForceOption,
    HtmlOption,
    JsonOption,
    TraceOption,
    prepare_program,
    with_options,
)
from outlay.cli.output import check_outputs, print_facts_or_brief, print_picture, say, write_page, write_trace
from outlay.recipes.program_options import ProgramOptions

if TYPE_CHECKING:
    from jax.sharding import AbstractMesh

    from outlay.analysis.hlo.hlo_collectives import CollectiveKind
    from outlay.recipes.ways_to_fit import WayToFit
    from outlay.report.explain.brief_explanation import BriefExplanation
    from outlay.report.explain.explanation import Explanation
    from outlay.search.fix_activations import Fix


@with_options(options=ProgramOptions)
def explain(
    context: typer.Context,
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE|FILE.hlo",
            help="A recipe by name (digits), path/to/file.py:function, or the saved text of a compiled program.",
        ),
    ],
    options: ProgramOptions,
    html: HtmlOption = None,
    trace: TraceOption = None,
    force: ForceOption = False,
    cache: CacheOption = True,
    as_json: JsonOption = False,
    print_all: AllOption = False,
    fix: Annotated[
        bool,
        typer.Option(
            "--fix", help="Try rules that place activations as the findings suggest, and show what they save."
        ),
    ] = False,
    front: Annotated[
        Path | None,
        typer.Option(
            "--front", metavar="FILE.json", help="Show where it stands in what outlay choose --json wrote about it."
        ),
    ] = None,
    max_bytes: Annotated[
        str | None,
        typer.Option(
            "--max-bytes", metavar="SIZE", help="Fail if a device sends more than this in a step, such as 10GiB."
        ),
    ] = None,
    max_memory: Annotated[
        str | None,
        typer.Option(
            "--max-memory", metavar="SIZE", help="Fail if a device needs more memory than this, such as 60GiB."
        ),
    ] = None,
    forbid: Annotated[
        list[str] | None,
        typer.Option(
            "--forbid", metavar="KIND", help="Fail if there is a collective of this kind, such as all-to-all."
        ),
    ] = None,
) -> None:
    """Show what a step moves, stores and computes, by layer and line; exit code 1 if a limit is exceeded.

    The recipe is compiled, never run. With --target it is compiled by the real compiler for GPUs or TPUs that need not
    be attached.
    """
    check_outputs(html, trace, force=force)
    limits = _limits(max_bytes, max_memory, forbid or ()) if max_bytes or max_memory or forbid else None
    ways: list[WayToFit] = []
    fixed: Fix | None = None
    if recipe.endswith((".hlo", ".txt")):
        if fix:
            raise typer.BadParameter(f"{recipe} is already compiled, and has no layout to change", param_hint="--fix")
        if front:
            raise typer.BadParameter(f"{recipe} is already compiled: choices are of recipes", param_hint="--front")
        explanation = _of_file(context, recipe, options)
    else:
        from outlay.cli.interrupt import watch
        from outlay.report.explain.explain import explain as explain_program

        choice = _choice(front, recipe, context.args, options) if front else None
        prepared = prepare_program(context, recipe, options)
        watch(patience=0.5)  # nothing is run, and nothing lost
        explanation = explain_program(prepared.program, target=options.target, cache=cache)
        if explanation.by_parts is None:
            explanation = replace(explanation, asked=_asked(recipe, context.args, options))
        if choice is not None:
            explanation = _placed_on_front(explanation, choice, prepared.program.batch_shapes)
        if explanation.fits is False and options.target is not None:
            from outlay.recipes.ways_to_fit import memory_options

            ways = memory_options(
                prepared, explanation, recipe, context.args, options.target, str(options.compiler_options), cache=cache
            )
        if fix:
            from outlay.search.fix_activations import fix as fix_activations

            fixed = fix_activations(prepared.program, explanation=explanation)
    with_fix = {"fix": fixed.to_dict()} if fixed else {}

    def brief() -> BriefExplanation | Explanation:
        from outlay.report.explain.brief_explanation import BriefExplanation

        return explanation if explanation.by_parts is not None else BriefExplanation(explanation)

    ways_as_json = [way.to_dict() for way in ways]
    print_facts_or_brief(explanation, brief, as_json=as_json, print_all=print_all, ways_to_fit=ways_as_json, **with_fix)
    if not as_json:
        if fixed:
            print_picture(fixed)
        if explanation.fits is False and options.target is not None:
            from outlay.recipes.ways_to_fit import describe_memory_options

            for line in describe_memory_options(explanation, ways, recipe, context.args, options.target):
                say(line, err=True)
    broken = limits(explanation) if limits else ()
    for limit in broken:
        say(f"over budget: {limit}", err=True)
    write_page(html, explanation, force=force)
    if trace is not None:
        from outlay.report.explain.timeline_trace import timeline_trace

        write_trace(trace, lambda: timeline_trace(explanation), force=force)
    raise typer.Exit(CHECK_FAILED if broken else 0)


def _limits(
    max_bytes: str | None, max_memory: str | None, forbid: Sequence[str]
) -> Callable[[Explanation], tuple[str, ...]]:
    """Read the limits that a program is asked to keep, and return what says which of them it exceeds."""
    from outlay.report.explain.budgets import broken_budgets, read_kind, read_size

    sizes = {name: read_size(text) for name, text in (("bytes", max_bytes), ("memory", max_memory)) if text}
    kinds: list[CollectiveKind] = [read_kind(kind) for kind in forbid]
    return functools.partial(broken_budgets, max_bytes=sizes.get("bytes"), max_memory=sizes.get("memory"), forbid=kinds)


def _asked(recipe: str, words: Sequence[str], options: ProgramOptions) -> str:
    """Return the command that asks for it."""
    import shlex

    return shlex.join(["outlay", "explain", recipe, *words, *options.words()])


def _choice(path: Path, recipe: str, words: Sequence[str], options: ProgramOptions) -> Mapping[str, Any]:
    """Read the choice before anything is compiled."""
    from outlay.report.explain.explain_front import check_choice, read_choice

    choice = read_choice(path)
    target = options.target or (f"cpu:{options.devices}" if options.devices else "the devices that are attached")
    check_choice(choice, recipe, words, target, path)
    return choice


def _placed_on_front(explanation: Explanation, choice: Mapping[str, Any], batch: Any) -> Explanation:
    """Compare a program with the candidates of a choice; one without times or memory is compared with none."""
    from outlay.report.explain.explain_front import front_of

    estimate, memory = explanation.estimate, explanation.memory
    if estimate is None or memory is None:
        return explanation
    return replace(explanation, front=front_of(choice, estimate.seconds, memory.peak, batch))


def _of_file(context: typer.Context, file: str, options: ProgramOptions) -> Explanation:
    if extra := [*options.given("target", "mesh"), *context.args]:
        raise typer.BadParameter(f"{file} is already compiled: {extra[0]} is for recipes only", param_hint=extra[0])
    from outlay.report.explain.explain import explain as explain_text

    return explain_text(Path(file), target=options.target, mesh=_abstract(str(options.mesh)) if options.mesh else None)


def _abstract(axes: str) -> AbstractMesh:
    """Return the mesh that a saved program was compiled for, without devices."""
    from jax.sharding import AbstractMesh, AxisType

    from outlay.devices.mesh_spec import MeshSpec

    sizes = MeshSpec.parse(axes).axis_sizes
    return AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))
