"""What to write where a model names a mesh of its own, as published code does, and it is not the program's."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable
from typing import Any

from jax.sharding import Mesh

from outlay.core.error_types import Problem, ProgramError
from outlay.core.jax_source import source_line, source_line_of_error
from outlay.core.quantities import counted, plural
from outlay.core.suggest import did_you_mean

_MISPLACED = re.compile(
    r"context mesh .* should match the mesh passed to shard_map|with_sharding_constraint arguments is incompatible",
    re.DOTALL,
)
# JAX has no types for these errors: they are known by their words.
_REFUSED = re.compile(
    r"should match the mesh passed to shard_map"
    r"|Received incompatible devices for jitted computation"
    r"|requires a non-empty mesh"
    r"|Axis: \S+ .*is also found in manual_axes"
    r"|can only refer to Auto axes"
    r"|is not found in mesh"
)

_UNKNOWN_AXIS = re.compile(r"Resource axis: \S+ of (P\(.*?\)) is not found in mesh")
_QUOTED = re.compile(r"'([^']+)'")


def runs_without_mesh(error: Exception, *, whatever_fails: bool) -> bool:
    """Return whether what failed in the context of a mesh may run without it; see `in_context`."""
    of_placement = isinstance(error, ValueError) and _MISPLACED.search(str(error))
    return bool(of_placement) or (whatever_fails and not _REFUSED.search(str(error)))


def mesh_error(error: Exception, what: str, mesh: Mesh, mode: str) -> ProgramError | None:
    """Return what to raise where JAX refuses a mesh that a model names itself; None for other errors.

    Args:
        error: JAX's error.
        what: what is being traced or compiled, for the message.
        mesh: the program's mesh.
        mode: the program's mode.
    """
    line = source_line_of_error(error)
    if isinstance(error, AssertionError):
        # JAX asserts without a word: the call is among the last frames.
        called = "\n".join(frame.line or "" for frame in traceback.extract_tb(error.__traceback__)[-10:])
        if str(error) or mode != "manual" or not re.search(r"\bp(sum|mean)\(", called):
            return None
        return ProgramError(
            f"{what} sums over an axis that jax.vmap names ({line}), as Equinox's BatchNorm "
            'does, which JAX does not trace in mode manual\n  fix: mode="auto", under the same layout'
        )
    if not _REFUSED.search(str(error)):
        return None
    if unknown := _UNKNOWN_AXIS.search(str(error)):
        return _unknown_axes(what, unknown[1], line, mesh)
    return ProgramError(
        f"{what} names a mesh or devices that do not go with the program's, {_in_words(mesh)}"
        f"{f': {line}' if line else ''}\n  {_fix(mesh, mode)}\n  JAX says: {str(error).strip()}"
    )


def _unknown_axes(what: str, spec: str, line: str, mesh: Mesh) -> ProgramError:
    """Return the error for a spec in the model whose axes the mesh lacks."""
    lacking = [axis for axis in dict.fromkeys(_QUOTED.findall(spec)) if axis not in mesh.axis_names]
    fix = "name an axis of the mesh, or one more: outlay.mesh({}=...); of logical names the rules of "
    fix += "outlay.layout.from_annotations say the axes"
    problems = [
        Problem("unknown axis", axis, did_you_mean(axis, mesh.axis_names), fix.format(axis)) for axis in lacking
    ]
    head = f"{what} places a value by {spec}{f' ({line})' if line else ''}, and {_in_words(mesh)} lacks"
    return ProgramError(f"{head} {counted(len(lacking), 'axis', 'axes')} of it:", problems)


def other_devices(named: Iterable[tuple[Any, Mesh]], what: str, mesh: Mesh) -> ProgramError:
    """Return the error for operations that name meshes of devices that are not the program's, or not in its order."""
    devices = tuple(mesh.devices.flat)
    others = dict.fromkeys((eqn.primitive.name, source_line(eqn), other) for eqn, other in named)
    problems = []
    for name, line, other in others:
        same = set(other.devices.flat) == set(devices)
        why = "the same devices in another order" if same else _devices(other)
        what_is_wrong = f"it names {_in_words(other)}, {why}; the program runs on {_in_words(mesh)}, {_devices(mesh)}"
        problems.append(Problem(name, line or "a line that JAX does not know", what_is_wrong, _edit(mesh)))
    head = (
        f"{counted(len(problems), 'line')} in {what} {plural(len(problems), 'names', 'name')} other devices "
        "than the program's:"
    )
    return ProgramError(head, problems)


def _fix(mesh: Mesh, mode: str) -> str:
    auto = ', and mode="auto": in mode manual a model runs on each device\'s pieces' if mode == "manual" else ""
    return f"fix: {_edit(mesh)}{auto}"


def _edit(mesh: Mesh) -> str:
    axes = ", ".join(map(repr, mesh.axis_names))
    return (
        "leave mesh= out of jax.shard_map, and the mesh out of shardings (P(...) in place of NamedSharding(mesh, "
        f"P(...))), and name the program's axes there: {axes}"
    )


def _in_words(mesh: Mesh) -> str:
    return "mesh " + ",".join(f"{axis}={size}" for axis, size in mesh.shape.items())


def _devices(mesh: Mesh) -> str:
    # The last one twice, so that a mesh of one device has a first and a last.
    first, *_, last = (*mesh.devices.flat, mesh.devices.flat[-1])
    return f"{counted(mesh.size, 'device')} from {first} to {last}"
