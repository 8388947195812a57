"""The modes of a program: how a step is executed, where each of them can be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar, get_args

import jax
from jax.sharding import Mesh

from outlay.core.error_types import ProgramError
from outlay.core.quantities import counted
from outlay.core.suggest import did_you_mean
from outlay.devices.mesh_info import is_explicit

Mode = Literal["auto", "manual", "placed"]
"""Who splits a step: XLA, the step itself on shards, or a program for each part of a graph."""
Step = Callable[[Any, Any], tuple[Any, Any]]


def check_mode(mode: str, mesh: Mesh) -> None:
    """Raise for a mode that does not exist, or not on this mesh."""
    if mode not in get_args(Mode):
        raise ProgramError(f"there is no mode {mode!r}: {did_you_mean(mode, get_args(Mode))}")
    if mode != "auto" and is_explicit(mesh):
        raise ProgramError(
            f"mode {mode} takes a mesh with automatic axes: inside it each device's pieces have no sharding to be "
            "explicit about\n  fix: outlay.mesh(...) without explicit=True"
        )


T = TypeVar("T")


def only_part(what: str, parts: Sequence[T], mode: str) -> T:
    """Return what a program has as one, such as its compiled step; raise if it has one for each group of devices."""
    if len(parts) == 1:
        return parts[0]
    raise ProgramError(
        f"in mode {mode} this program has {counted(len(parts), 'compiled step')}, one for each of its "
        f"program.device_groups\n  fix: program.{what}_parts"
    )


def check_jit_enabled() -> None:
    """Raise if JAX is told to compile nothing: a program would then silently ignore its layout.

    Raises:
        ProgramError: `jax_disable_jit` is set.
    """
    if jax.config.values["jax_disable_jit"]:
        raise ProgramError(
            "jax_disable_jit is set, and a program is a compiled step: nothing would be laid out\n"
            "  fix: unset JAX_DISABLE_JIT; to debug line by line call the step itself: step(init(key), batch)"
        )
