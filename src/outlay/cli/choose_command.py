"""`outlay choose`: choose a layout for hardware that need not be attached."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outlay.cli.options import AllOption, ForceOption, HtmlOption, JsonOption, ModeOption, RecipeArgument, own_options
from outlay.cli.output import check_outputs, print_facts_or_brief, say, write_page
from outlay.search.workers import NUM_CANDIDATES, TIMEOUT

if TYPE_CHECKING:
    from outlay.render.report import Report
    from outlay.search.placement.choice import PlacementChoice
    from outlay.search.selection import Selection


def choose(
    context: typer.Context,
    recipe: RecipeArgument,
    target: Annotated[
        str,
        typer.Option("--target", metavar="T", help="Hardware to choose for, such as h100:32x8, tpu-v5e:4x4 or cpu:8."),
    ],
    layout: Annotated[
        list[str] | None,
        typer.Option("--layout", metavar="NAME|FILE.toml", help="A layout to choose from; may be repeated."),
    ] = None,
    mesh: Annotated[
        list[str] | None,
        typer.Option("--mesh", metavar="AXES", help="A mesh to choose from, such as data=32,model=8; may be repeated."),
    ] = None,
    mode: ModeOption = None,
    compiler_options: Annotated[
        str | None,
        typer.Option(
            "--compiler-options",
            "--xla",
            metavar="preset|none|FILE",
            help="Compiler options, as in explain; by default the preset, and the best candidate without it too.",
        ),
    ] = None,
    candidates: Annotated[
        int, typer.Option("--num-candidates", min=1, metavar="N", help="How many candidates to compile.")
    ] = NUM_CANDIDATES,
    timeout: Annotated[
        float, typer.Option("--timeout", min=1, metavar="S", help="Seconds allowed for compiling one candidate.")
    ] = TIMEOUT,
    processes: Annotated[
        int | None,
        typer.Option(
            "--processes",
            min=1,
            metavar="P",
            help="How many to compile at a time; by default as many as the cores allow.",
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", metavar="FILE", help="Where the chosen layout is written, as TOML.")
    ] = Path("chosen.toml"),
    html: HtmlOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
    print_all: AllOption = False,
) -> None:
    """Choose a layout and a mesh for a target, with its own compiler and without the hardware.

    What was compiled is kept: the same command continues where it was stopped. For a graph, it chooses which part goes
    to which devices; on a cpu target the parts are measured.
    """
    os.environ["JAX_PLATFORMS"] = "cpu"  # this process only plans: it must not occupy attached devices
    check_outputs(output, html, force=force)
    from outlay.core.flag_check import check_flags
    from outlay.recipes.choose import choose_by_words

    check_flags()  # before the recipe's own file can start JAX
    selection = choose_by_words(
        recipe,
        context.args,
        target,
        known=own_options(context, recipe),
        narrowed={"--layout": layout, "--mesh": mesh, "--mode": mode},
        compiler_options=compiler_options,
        num_candidates=candidates,
        processes=processes,
        timeout=timeout,
    )
    print_facts_or_brief(selection, lambda: _brief(selection), as_json=as_json, print_all=print_all)
    write_page(html, selection, force=force)
    file = _write(output, selection, force=force)
    if not as_json:
        say("\n" + "\n".join(selection.commands(file)))


def _brief(selection: Selection | PlacementChoice) -> Report:
    """Return what a terminal shows of a long choice."""
    from outlay.search.brief_selection import BriefSelection
    from outlay.search.selection import Selection

    return BriefSelection(selection) if isinstance(selection, Selection) else selection


def _write(path: Path, selection: Selection | PlacementChoice, *, force: bool) -> str | None:
    """Write the layout; return its name, or None if it holds what no file can."""
    if selection.toml is None:
        say(f"{path} is not written: the layout holds a Python function, which a file cannot express", err=True)
        return None
    from outlay.core.output_file import write_output

    write_output(path, selection.toml, force=force)
    say(f"wrote {path}", err=True)
    return str(path)
