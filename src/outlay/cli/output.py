"""Printing to stdout: colour and the terminal's width on a terminal, plain text where it is piped."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import typer

_PIPED_WIDTH = 120


def print_picture(renderable: Any) -> None:
    """Print something that rich can draw."""
    from rich.console import Console

    from outlay.core.table import to_text

    if sys.stdout.isatty():
        Console(highlight=False).print(renderable)
    else:
        typer.echo(to_text(renderable, width=_PIPED_WIDTH))


def print_json(facts: Any) -> None:
    """Print facts as one JSON document."""
    typer.echo(json.dumps(facts, indent=1))


def write_page(path: Path, page: str) -> None:
    """Write a page where `--html` asks for it, and say so."""
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise typer.BadParameter(f"{path} cannot be written: {error.strerror}", param_hint="--html") from error
    typer.echo(f"wrote {path}: open it in a browser", err=True)
