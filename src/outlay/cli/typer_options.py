"""An option of a command from the class that declares it."""

from __future__ import annotations

from typing import Any

import typer

from outlay.core.option import options_in


def command_option(declaring: type, name: str) -> Any:
    """Return an option as typer takes it, from the class that declares it.

    Args:
        declaring: the class of options.
        name: the name of its field.
    """
    declared = options_in(declaring)[name]
    option = declared.option
    return typer.Option(
        *(declared.flag, *option.also),
        metavar=option.metavar or None,
        help=option.help,
        min=option.minimum,
        parser=seconds if option.unit == "seconds" else None,
    )


def seconds(text: str) -> float:
    """Return a number of seconds; infinity for `off`."""
    if text == "off":
        return float("inf")
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.1 <= number < float("inf"):
        raise typer.BadParameter(f"{text!r} is neither a number of seconds, 0.1 or more, nor 'off'")
    return number
