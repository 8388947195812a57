"""The compile-only devices made so far, by target: what they are for, and that nothing runs on them."""

from __future__ import annotations

import jax
from jax.sharding import Mesh

from outlay.core.error_types import ProgramError
from outlay.core.jax_compat import is_compile_only
from outlay.devices.target import Target

made: dict[Target, list[jax.Device]] = {}
"""Devices of each target that was asked for; there they are made once."""


def made_for(device: jax.Device) -> Target | None:
    """The target that a compile-only device belongs to."""
    if not is_compile_only(device):
        return None
    return next((target for target, devices in made.items() if device in devices), None)


def refuse_to_run(mesh: Mesh, what: str) -> None:
    """Raise where a mesh is of compile-only devices.

    Args:
        mesh: the mesh.
        what: what was about to be done on it, to begin the message with.

    Raises:
        ProgramError: nothing runs there.
    """
    device = mesh.devices.flat[0]
    if not is_compile_only(device):
        return
    target = made_for(device) or device.device_kind
    raise ProgramError(
        f"{what} on this mesh: its {mesh.size} devices are compile-only ({target}), which programs are compiled for "
        "and cannot run on\n"
        "  fix: look at the program instead, outlay.explain(program) or outlay.estimate(program)\n"
        f"  or run it on as many simulated devices: target='cpu:{mesh.size}'"
    )
