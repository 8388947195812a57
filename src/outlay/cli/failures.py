"""How a command fails: an error on stderr without a traceback, and an exit code that scripts can tell apart."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from outlay.core.errors import OutlayError

WRONG_USE = 2
STOPPED = 130  # 128 + SIGINT, as shells count


class Commands(TyperGroup):
    """Runs a command; turns Outlay's own errors and Ctrl-C into messages. Anything else is a bug, and shows as one."""

    def invoke(self, ctx: typer.Context) -> Any:
        """Run the command that the arguments name."""
        try:
            return super().invoke(ctx)
        except OutlayError as error:
            if ctx.params["traceback"]:
                raise
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(WRONG_USE) from error
        except KeyboardInterrupt as stop:
            typer.echo(str(stop) or "stopped", err=True)
            raise typer.Exit(STOPPED) from stop
