"""Models that name a mesh of their own, as published code does: run as they are where they can, and refused in words.

A program is traced in the context of its mesh, so that a model may name the mesh's axes and no mesh. A `jax.shard_map`
over another mesh of the same devices runs only outside of that context, so it is left where a model asks for it.
"""

from __future__ import annotations

import contextlib
import re
import traceback
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
from jax.sharding import Mesh, NamedSharding

from outlay.core.error_types import Problem, ProgramError
from outlay.core.jax_compat import is_compile_only
from outlay.core.jax_source import source_line, source_line_of_error
from outlay.core.jax_tracing import fresh_traces, operations
from outlay.core.quantities import counted, plural
from outlay.core.suggest import did_you_mean

T = TypeVar("T")

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


def in_context(
    context: Callable[[], contextlib.AbstractContextManager[Any]], run: Callable[[], T], *, whatever_fails: bool = False
) -> tuple[T, bool]:
    """Run in the context of a mesh, or without it if that fails; also return whether it was in it.

    Args:
        context: enters the mesh.
        run: traces a step or an init function.
        whatever_fails: leave the mesh for any error, not only for those of meshes and placement. In the context of a
            mesh libraries place annotated values while a model makes them, each in its own way, and some refuse what
            they would take without a mesh: Flax Linen a kernel that it reshapes afterwards. An axis that the mesh lacks
            is an error in any case: without the mesh the annotation would silently mean nothing.
    """
    try:
        with context():
            return run(), True
    except ProgramError:
        raise
    except Exception as error:
        text = str(error)
        of_placement = isinstance(error, ValueError) and _MISPLACED.search(text)
        if not (of_placement or (whatever_fails and not _REFUSED.search(text))):
            raise
        try:
            return run(), False
        except ProgramError:
            raise
        except Exception:  # it needs the context elsewhere
            raise error from None


@contextlib.contextmanager
def explaining_mesh_errors(what: str, mesh: Mesh, mode: str = "auto") -> Iterator[None]:
    """Say what to write where JAX refuses a mesh that a model names itself.

    Args:
        what: what is being traced or compiled, for the message.
        mesh: the program's mesh.
        mode: the program's mode.

    Raises:
        ProgramError: in place of JAX's error.
    """
    try:
        yield
    except AssertionError as error:
        # JAX asserts without a word: the call is among the last frames.
        called = "\n".join(frame.line or "" for frame in traceback.extract_tb(error.__traceback__)[-10:])
        if str(error) or mode != "manual" or not re.search(r"\bp(sum|mean)\(", called):
            raise
        raise ProgramError(
            f"{what} sums over an axis that jax.vmap names ({source_line_of_error(error)}), as Equinox's BatchNorm "
            'does, which JAX does not trace in mode manual\n  fix: mode="auto", under the same layout'
        ) from error
    except (ValueError, RuntimeError) as error:
        if isinstance(error, ProgramError) or not _REFUSED.search(str(error)):
            raise
        line = source_line_of_error(error)
        if unknown := _UNKNOWN_AXIS.search(str(error)):
            raise _unknown_axes(what, unknown[1], line, mesh) from error
        raise ProgramError(
            f"{what} names a mesh or devices that do not go with the program's, {_in_words(mesh)}"
            f"{f': {line}' if line else ''}\n  {_fix(mesh, mode)}\n  JAX says: {str(error).strip()}"
        ) from error


def on_mesh(
    mesh: Mesh,
    mode: str,
    stage: Callable[..., Any],
    shapes: Any,
    what: str,
    context: Callable[[], contextlib.AbstractContextManager[Any]],
) -> Any:
    """Trace or lower a jitted function for a mesh, whose devices need not be attached.

    Args:
        mesh: the mesh.
        mode: the program's mode.
        stage: the jitted function's `lower`, or its `trace`.
        shapes: its arguments as shapes.
        what: what it is, for messages.
        context: makes the context in which it is traced; `jax.set_mesh` sets the mesh when it is called.
    """
    device = mesh.devices.flat[0]
    with explaining_mesh_errors(what, mesh, mode), contextlib.ExitStack() as stack:
        stack.enter_context(context())
        if is_compile_only(device):
            from outlay.core.jax_kernels import as_if_attached, lowering_callbacks

            stack.enter_context(lowering_callbacks(device))
            stack.enter_context(as_if_attached(device))
        stack.enter_context(fresh_traces())
        return stage(*shapes)


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


def check_named_devices(jaxpr: Any, what: str, mesh: Mesh) -> None:
    """Raise where a traced function names devices that are not the program's, or not in its order.

    Args:
        jaxpr: the trace; None where there is none.
        what: what was traced, for the message.
        mesh: the program's mesh.

    Raises:
        ProgramError: with every such line.
    """
    devices = tuple(mesh.devices.flat)
    others = (
        {}
        if jaxpr is None
        else {
            (eqn.primitive.name, source_line(eqn), named): None
            for eqn, named in _meshes(jaxpr)
            # An empty mesh is what a constraint holds as its context where there is none.
            if isinstance(named, Mesh) and named.size and tuple(named.devices.flat) != devices
        }
    )
    if not others:
        return
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
    raise ProgramError(head, problems)


def _meshes(jaxpr: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every mesh that an operation names, inner functions included."""
    for eqn in operations(jaxpr):
        for value in jax.tree.leaves(list(eqn.params.values()), is_leaf=_names_a_mesh):
            if _names_a_mesh(value):
                yield eqn, value.mesh if isinstance(value, NamedSharding) else value


def _names_a_mesh(value: Any) -> bool:
    return isinstance(value, Mesh | NamedSharding)


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
