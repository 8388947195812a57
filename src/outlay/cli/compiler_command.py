"""`outlay compiler`: fetch the compiler for GPUs or TPUs that are not here, where JAX does not find it."""

from __future__ import annotations

from typing import Annotated

import typer

from outlay.cli.output import say


def compiler(
    kind: Annotated[str, typer.Argument(metavar="gpu|tpu", help="The hardware to plan for.")],
) -> None:
    """Download the compiler for GPUs or TPUs that are not here, so that only Outlay finds it.

    Installed as a package (the extras gpu-plan and tpu-plan), JAX finds it too, and complains at every start.
    """
    from outlay.core.compiler_folder import KINDS

    if kind not in KINDS:
        raise typer.BadParameter(f"{kind!r}: one of {', '.join(KINDS)}", param_hint="gpu|tpu")
    from outlay.devices.add_compiler import add_compiler, requirement_of

    say(f"downloading {requirement_of(kind)}, some 100 MB", err=True)
    say(f"the compiler for {kind.upper()}s is in {add_compiler(kind)}")
