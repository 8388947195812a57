"""`outlay calibrate`: measure this machine, so that estimates for it rest on measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outlay.cli.interrupt import watch
from outlay.cli.options import DevicesOption, ForceOption, JsonOption
from outlay.cli.output import check_outputs, print_facts, say


def calibrate(
    devices: DevicesOption = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="Where to write; by default beside your file of targets."),
    ] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Measure how fast these devices copy, multiply and exchange, and keep it for estimates."""
    from outlay.devices.hardware import calibrated_file

    watch()
    path = output or calibrated_file()
    check_outputs(path if path.exists() else None, force=force)  # a missing folder is created
    if devices is not None:
        from outlay.devices.simulated import simulate

        simulate(devices)
    from outlay.analysis.cost.calibrate import calibrate as measure

    measured = measure(on_progress=lambda what: say(f"measuring {what}", err=True))
    measured.write(path, force=force)
    print_facts(measured, as_json=as_json, key=measured.base.key)
    say(f"wrote {path}", err=True)
