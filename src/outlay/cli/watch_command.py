"""`outlay watch`: a page on this machine that follows a run while it goes on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from outlay.cli.output import say


def watch(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The run folder, such as runs/digits.")],
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, metavar="N", help="The port; by default one that is free.")
    ] = 0,
) -> None:
    """Serve a page on this machine that follows a run while it goes on, until Ctrl-C; reads the run folder only."""
    from outlay.report.live_server import LiveServer

    server = LiveServer(folder, port)
    say(server.address)
    sys.stdout.flush()  # into a pipe too: whoever has asked for the address waits for it
    say("open it in a browser on this machine; Ctrl-C ends it, and not the run", err=True)
    try:
        server.serve()
    except KeyboardInterrupt:
        raise typer.Exit from None
    finally:
        server.shut()
