"""`outlay checkpoint`: show what is in a folder of checkpoints, without devices."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outlay.cli.failures import CHECK_FAILED
from outlay.cli.options import JsonOption, command_group
from outlay.cli.output import print_json, print_picture, say

if TYPE_CHECKING:
    from outlay.train.checkpoint.folder import Contents

checkpoint = command_group(
    "checkpoint",
    help="Look into checkpoints; reads files only, and needs no devices.",
    epilog="There is nothing to convert: a checkpoint holds global arrays, and is restored onto any mesh and layout.",
)


@checkpoint.command()
def show(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A run folder, a folder of checkpoints, or one checkpoint.")
    ],
    step: Annotated[
        int | None, typer.Option("--step", metavar="N", help="Which one; by default the newest complete one.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show paths, shapes, dtypes and bytes of a checkpoint, and who wrote it. Exit code 1 if one is damaged."""
    from outlay.train.checkpoint.folder import contents

    inside = contents(folder, step)
    if as_json:
        print_json(inside.to_dict())
    else:
        _print(inside)
    if inside.damaged:
        raise typer.Exit(CHECK_FAILED)


def _print(inside: Contents) -> None:
    say(inside.headline)
    if inside.manifest is not None:
        print_picture(inside.table())
    for line in inside.damage_lines:
        say(f"damaged: {line}", err=True)
