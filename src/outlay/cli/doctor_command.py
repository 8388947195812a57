"""`outlay doctor`: what is here, what is set, and what to do about it; and what an error message means."""

from __future__ import annotations

from typing import Annotated

import typer

from outlay.cli.failures import CHECK_FAILED
from outlay.cli.options import JsonOption
from outlay.cli.output import print_json, say

MessageOption = Annotated[
    str | None,
    typer.Option("--message", metavar="TEXT|-", help="Explain an error or a log instead; - reads it from stdin."),
]


def doctor(message: MessageOption = None, as_json: JsonOption = False) -> None:
    """Show versions, devices and settings, and name known problems.

    Exits with 1 when JAX cannot start, or when nothing in a message is known.
    """
    if message is not None:
        pasted = typer.get_text_stream("stdin", errors="replace").read() if message == "-" else message
        _explain(pasted, as_json)
        return
    from outlay.cli.doctor_facts import examine

    found = examine()
    if as_json:
        print_json(found.to_dict())
    else:
        say(str(found))
    if found.failure:
        raise typer.Exit(CHECK_FAILED)


def _explain(text: str, as_json: bool) -> None:
    from outlay.cli.diagnosis import diagnose_text

    if not text.strip():
        raise typer.BadParameter("there is nothing to explain: the text is empty", param_hint="--message")
    diagnosis = diagnose_text(text)
    if as_json:
        print_json(diagnosis.to_dict())
    else:
        say(str(diagnosis))
    if not diagnosis.findings:
        raise typer.Exit(CHECK_FAILED)
