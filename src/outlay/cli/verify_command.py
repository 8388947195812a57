"""`outlay verify`: check that a recipe computes under a layout what it computes on one device."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from outlay.cli.failures import CHECK_FAILED, UNKNOWN
from outlay.cli.options import (
    ForceOption,
    HtmlOption,
    JsonOption,
    RecipeArgument,
    load_recipe,
    with_options,
)
from outlay.cli.output import check_outputs, print_facts, say, write_page
from outlay.recipes.program_options import ProgramOptions

if TYPE_CHECKING:
    from outlay.recipes.prepare import Prepared

EXIT_CODES = {"same": 0, "no fault found": 0, "different": CHECK_FAILED, "unknown": UNKNOWN}
ENOUGH = 8
STEPS = 3
SIZES = ("auto", "full", "small")


@with_options(options=ProgramOptions)
def verify(
    context: typer.Context,
    recipe: RecipeArgument,
    options: ProgramOptions,
    steps: Annotated[
        int | None, typer.Option("--steps", min=1, metavar="N", help="Steps to compare; 3 by default.")
    ] = None,
    against: Annotated[
        str, typer.Option("--against", metavar="one-device|auto|manual", help="What to compare with.")
    ] = "one-device",
    tolerance: Annotated[
        float | None,
        typer.Option(
            "--tolerance", metavar="SHARE", help="How far an array may differ, as a share of its largest entry."
        ),
    ] = None,
    static: Annotated[
        bool,
        typer.Option("--static", help="Compute nothing: follow the exchanges of the compiled program, at any size."),
    ] = False,
    size: Annotated[
        str,
        typer.Option(
            "--size",
            metavar="auto|full|small",
            help="Of a program for a target: compute it at full size, or a smaller one of the same structure; "
            "auto takes the smaller one where this machine has no room for the full one.",
        ),
    ] = "auto",
    html: HtmlOption = None,
    force: ForceOption = False,
    show_all: Annotated[
        bool, typer.Option("--all", help="Print every array, not only the three nearest to a difference.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check that a recipe computes what one device computes; exit code 1 if not, 3 if that is unknown.

    If only one device is attached, 8 are simulated. Stages are shown on stderr, a line each. Of arrays that are all the
    same the three nearest to a difference are printed; where something differs, all. With --static nothing is
    computed, which takes seconds at any size and finds faults of exchanges only.
    """
    check_outputs(html, force=force)
    numeric = {"--steps": steps, "--tolerance": tolerance, "--against": None if against == "one-device" else against}
    for option, value in numeric.items():
        if static and value is not None:
            raise typer.BadParameter(f"nothing is computed, so it takes no {option}", param_hint="--static")
    if size not in SIZES:
        raise typer.BadParameter(f"{size!r} is not one of {', '.join(SIZES)}", param_hint="--size")
    from outlay.analysis.verify.verification import brief
    from outlay.analysis.verify.verify import verify as verify_program
    from outlay.recipes.prepare import prepare_with

    loaded = load_recipe(context, recipe, options)
    if options.devices is None and options.target is None:
        _start_again_with_several_devices()
    prepared = prepare_with(loaded, options)
    program = prepared.program

    def progress(stage: str) -> None:
        say(f"verify: {stage}", err=True)

    if static:
        verification = verify_program(program, static=True, progress=progress)
        print_facts(verification, as_json=as_json)
    elif small := _smaller(prepared, options, size, STEPS if steps is None else steps):
        import jax

        verification = verify_program(
            program,
            STEPS if steps is None else steps,
            cast(Any, against),
            like=small.program,
            batches=small.recipe.data,
            key=jax.random.key(loaded.seed),
            tolerance=tolerance,
            progress=progress,
        )
        print_facts(verification, as_json=as_json)
    else:
        import jax

        verification = verify_program(
            program,
            STEPS if steps is None else steps,
            cast(Any, against),
            batches=loaded.data,
            key=jax.random.key(loaded.seed),
            tolerance=tolerance,
            progress=progress,
        )
        print_facts(verification if show_all else brief(verification), as_json=as_json)
    write_page(html, verification, force=force)
    if code := EXIT_CODES[verification.verdict]:
        raise typer.Exit(code)


def _smaller(prepared: Prepared, options: ProgramOptions, size: str, steps: int) -> Prepared | None:
    """Return the smaller program that is to be computed in place of one for a target; None if that one is."""
    if options.target is None or size == "full" or prepared.program.is_graph:
        return None
    from outlay.core.error_types import LayoutError
    from outlay.recipes.smaller import can_be_smaller, smaller

    if size == "auto":
        from outlay.analysis.verify.as_compiled.room_here import why_no_room

        why = why_no_room(prepared.program, steps)
        if not why or not can_be_smaller(prepared):
            return None
        say(f"too big to compute here: {why}; a smaller one of the same structure is computed", err=True)
    try:
        return smaller(prepared, mode=options.mode, compiler_options=options.compiler_options)
    except LayoutError as error:
        if size == "small":
            raise
        say(f"there is no smaller one: {str(error).splitlines()[0]}", err=True)
        return None


def _start_again_with_several_devices() -> None:
    """Replace this process by one with simulated devices, if only one device leaves nothing to compare.

    The number of devices is known only once JAX has started, and then it is fixed.
    """
    from outlay.core.jax_compat import attached_devices

    if len(attached_devices()) > 1:
        return
    say(f"a single device is attached: verifying on {ENOUGH} simulated ones, as with --devices {ENOUGH}", err=True)
    # exec drops what is still in the buffers of this process.
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:], "--devices", str(ENOUGH)])
