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


def refuse_output(path: Path | None, *, force: bool) -> None:
    """Raise where a file that a command is to write at its end would replace one that Outlay did not make.

    Raises:
        OutputError: it would, or cannot be written.
    """
    if path is not None:
        from outlay.core.output_file import refuse_to_replace

        refuse_to_replace(path, force=force)


def write_page(path: Path, page: str, *, force: bool) -> None:
    """Write a page where `--html` asks for it, and say so.

    Raises:
        OutputError: it would replace a file that Outlay did not make, or cannot be written.
    """
    from outlay.core.output_file import write_output

    write_output(path, page, force=force)
    typer.echo(f"wrote {path}: open it in a browser", err=True)
