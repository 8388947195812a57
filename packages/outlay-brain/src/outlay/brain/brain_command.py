"""`outlay brain`: inspect the file of a Brain, and convert between file formats; nothing runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outlay.kit import ForceOption, JsonOption, check_outputs, command_group, print_json, print_picture, say

brain = command_group(
    "brain",
    help="Look into files of Brains, and convert them; nothing is run.",
    epilog="A Brain is run as a recipe: outlay run FILE.",
)

InputsOption = Annotated[
    list[str] | None,
    typer.Option(
        *("--shape", "--input"),
        metavar="NAME=SHAPE",
        help="Shape of an input, as drive=4, where a .scfg does not say it.",
    ),
]


@brain.command()
def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A Brain as .toml, or a .scfg of Spark.")],
    inputs: InputsOption = None,
    picture: Annotated[
        Path | None, typer.Option("--picture", metavar="FILE", help="Draw modules and connections to a .png or .svg.")
    ] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show the tree of modules of a Brain: settings with units, shapes of state, and what reads what."""
    # Inside, so that `outlay --help` does not import JAX.
    from outlay.brain.files.read_brain import parse_shapes, read_brain
    from outlay.kit import use_cpu_if_alone

    use_cpu_if_alone()
    check_outputs(picture, force=force)
    loaded = read_brain(file, inputs=parse_shapes(inputs or ()))
    if as_json:
        print_json(loaded.inspect().to_dict())
    else:
        print_picture(loaded.inspect().tree())
    if picture is not None:
        loaded.picture(picture, force=force)
        say(f"wrote {picture}", err=True)


@brain.command()
def convert(
    source: Annotated[Path, typer.Argument(metavar="FROM", help="A .toml, a .scfg of Spark, or a .nir.")],
    target: Annotated[Path, typer.Argument(metavar="TO", help="A .toml or a .nir.")],
    inputs: InputsOption = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Draws the kernels that a .nir holds.")] = 0,
    dt: Annotated[float, typer.Option("--dt", metavar="MS", help="Time of a step, which a .nir does not say.")] = 1.0,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Convert the file of a Brain. What the other format cannot say is listed, and then nothing is written."""
    from outlay.brain.files.convert import convert_brain
    from outlay.brain.files.read_brain import parse_shapes
    from outlay.kit import use_cpu_if_alone

    use_cpu_if_alone()
    for written in convert_brain(source, target, inputs=parse_shapes(inputs or ()), seed=seed, dt=dt, force=force):
        say(f"wrote {written}", err=True)
