"""`outlay doctor`: what is here, what is set, and what to do about it."""

from __future__ import annotations

import typer

from outlay.cli.options import JsonOption
from outlay.cli.output import print_json

CHECK_FAILED = 1


def doctor(as_json: JsonOption = False) -> None:
    """Show versions, devices and settings, and name known problems.

    Exits with 1 when JAX cannot start.
    """
    from outlay.cli.doctor_facts import examine

    found = examine()
    if as_json:
        print_json(found.to_dict())
    else:
        typer.echo(str(found))
    if found.failure:
        raise typer.Exit(CHECK_FAILED)
