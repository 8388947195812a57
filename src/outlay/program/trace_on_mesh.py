"""Trace and lower for a mesh, in whose context a model may name its axes; what JAX refuses there is explained.

A program is traced in the context of its mesh, so that a model may name the mesh's axes and no mesh. A `jax.shard_map`
over another mesh of the same devices runs only outside of that context, so it is left where a model asks for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
from jax.sharding import Mesh, NamedSharding

from outlay.core.error_types import ProgramError
from outlay.core.jax_compat import is_compile_only
from outlay.core.jax_tracing import fresh_traces, operations

T = TypeVar("T")


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
        from outlay.program.own_meshes import runs_without_mesh

        if not runs_without_mesh(error, whatever_fails=whatever_fails):
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
    except (AssertionError, ValueError, RuntimeError) as error:
        from outlay.program.own_meshes import mesh_error

        if isinstance(error, ProgramError) or (explained := mesh_error(error, what, mesh, mode)) is None:
            raise
        raise explained from error


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

            stack.enter_context(lowering_callbacks())
            stack.enter_context(as_if_attached(device))
        stack.enter_context(fresh_traces())
        return stage(*shapes)


def check_named_devices(jaxpr: Any, what: str, mesh: Mesh) -> None:
    """Raise where a traced function names devices that are not the program's, or not in its order.

    Args:
        jaxpr: the trace; None where there is none.
        what: what was traced, for the message.
        mesh: the program's mesh.

    Raises:
        ProgramError: with every such line.
    """
    # An empty mesh is what a constraint holds as its context where there is none.
    named = [] if jaxpr is None else [(eqn, one) for eqn, one in _meshes(jaxpr) if isinstance(one, Mesh) and one.size]
    devices = tuple(mesh.devices.flat)
    if others := [(eqn, one) for eqn, one in named if tuple(one.devices.flat) != devices]:
        from outlay.program.own_meshes import other_devices

        raise other_devices(others, what, mesh)


def _meshes(jaxpr: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every mesh that an operation names, inner functions included."""
    for eqn in operations(jaxpr):
        for value in jax.tree.leaves(list(eqn.params.values()), is_leaf=_names_a_mesh):
            if _names_a_mesh(value):
                yield eqn, value.mesh if isinstance(value, NamedSharding) else value


def _names_a_mesh(value: Any) -> bool:
    return isinstance(value, Mesh | NamedSharding)
