"""The options that ask for a program of a recipe, which commands and `outlay.run` have in common."""

# Without `from __future__ import annotations`: the annotations are values, which hold the options.
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from outlay.core.option import Option, given_in, options_in, words_of_given

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from outlay.program.compiler_options import RequestedOptions
    from outlay.schedules.stage_schedule import StageSchedule


@dataclass(frozen=True, kw_only=True)
class ProgramOptions:
    """Which program: on which devices, under which layout, executed and compiled how."""

    devices: Annotated[
        int | None,
        Option(
            "Simulate N devices; by default, use the attached ones.",
            "N",
            unit="devices",
            minimum=1,
            python="As `outlay.simulate` does; `processes` share them evenly.",
        ),
    ] = None
    target: Annotated[
        str | None,
        Option(
            "Hardware to plan for, such as h100:32x8, tpu-v5e:4x4, cpu:8 or FILE.toml:8; it need not be attached.",
            "T",
            python="To run, it has to be here.",
        ),
    ] = None
    mesh: Annotated[
        "str | Mesh | None",
        Option(
            "Mesh axes, such as data=4,model=2; one may be -1.",
            "AXES",
            kind=str,
            python="Or a mesh; the one that goes with the layout if None.",
        ),
    ] = None
    layout: Annotated[
        str | None,
        Option(
            "One of the recipe's layouts, or a TOML file of rules; NAME+host keeps the optimizer's state on the host.",
            "NAME|FILE.toml",
            python="Its default if None.",
        ),
    ] = None
    mode: Annotated[
        str | None,
        Option("How the step is executed; by default as the layout needs.", "auto|manual|placed"),
    ] = None
    schedule: Annotated[
        "StageSchedule | str | None",
        Option(
            "In which order the stages of a pipeline work in mode placed; by default 1f1b, with repeats interleaved.",
            "gpipe|1f1b|interleaved|zb-h1",
            kind=str,
            python="Or a schedule of `outlay.schedules`.",
        ),
    ] = None
    compiler_options: Annotated[
        "RequestedOptions",
        Option(
            "Compiler options: those of published recipes, none, or a file with one --name=value per line.",
            "preset|none|FILE",
            kind=str,
            also=("--xla",),
            python="Or a dictionary, as `outlay.program` takes them.",
        ),
    ] = "preset"

    def given(self, *but: str) -> list[str]:
        """Return the flags of the options that the user has given a value of their own, apart from some."""
        return [options_in(type(self))[name].flag for name in given_in(self, *but)]

    def words(self) -> list[str]:
        """Return the options that the user has given, as they are written on a command line."""
        return words_of_given(given_in(self))
