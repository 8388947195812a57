"""How a command fails: an error on stderr without a traceback, and an exit code that scripts can tell apart."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from outlay.core.errors import OutlayError

WRONG_USE = 2
STOPPED = 130  # 128 + SIGINT, as shells count
_EXTRA = ("flax", "grain", "matplotlib", "orbax", "sklearn")  # what the `train` extra installs, as it is imported


class Commands(TyperGroup):
    """Runs a command; turns Outlay's errors, missing extras and Ctrl-C into messages. All else shows as a bug."""

    def invoke(self, ctx: typer.Context) -> Any:
        """Run the command that the arguments name."""
        try:
            return super().invoke(ctx)
        except OutlayError as error:
            if ctx.params["traceback"]:
                raise
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(WRONG_USE) from error
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            if missing not in _EXTRA:
                raise
            typer.echo(
                f"error: this needs {missing}, which is not installed\n  cure: pip install 'outlay[train]'", err=True
            )
            raise typer.Exit(WRONG_USE) from error
        except KeyboardInterrupt as stop:
            typer.echo(str(stop) or "stopped", err=True)
            raise typer.Exit(STOPPED) from stop
