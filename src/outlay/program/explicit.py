"""Trace on Explicit axes, and say which line leaves a sharding open where JAX refuses to choose one."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AxisType, Mesh

from outlay.core.error_types import Problem, ProgramError
from outlay.core.jax_source import Frame, frames_of_error, frames_of_forward_pass
from outlay.core.jax_tracing import fresh_traces, is_sharding_error
from outlay.core.source_owner import OUTLAY, is_installed
from outlay.devices.mesh_info import is_explicit
from outlay.program.abstract import abstract_init, name_of, named

_MACHINERY = tuple(str(OUTLAY / folder) for folder in ("core", "graph", "program", "train"))

_ADVICE = {
    "Contracting dimensions": (
        "sum over a split dim",
        "jnp.matmul or jnp.einsum(..., out_sharding=P(...)), with the axes of each dim of the result",
    ),
    "].get(out_sharding=": (
        "lookup in a split table",
        "table.at[indices].get(out_sharding=P(...)); for a slice or take_along_axis, jax.reshard(table, P(...)) first, "
        "with the indexed dim whole",
    ),
    "].set/add/": ("update at split indices", "x.at[indices].add(values, out_sharding=P(...)), or set, likewise"),
    "This reshape is not supported": ("reshape of a split dim", "jax.lax.reshape(x, sizes, out_sharding=P(...))"),
    "carry input and carry output": (
        "carry of a loop",
        "start with what the body returns: jax.reshard(start, P(...)), with the axes of the output's type",
    ),
}
_OTHER = (
    "open sharding",
    "jax.reshard(operand, P(...)) on the line before: operands that are added or joined must be split alike, and a dim "
    "that is sorted or summed along must be whole",
)


def with_types(stage: Callable[..., Any], run: Callable[..., Any], shapes: Any, shardings: Any, mesh: Mesh) -> Any:
    """Trace or lower a jitted function from the types that its arguments have on Explicit axes.

    Args:
        stage: `jax.jit(run).lower`, or its `trace`.
        run: the function itself.
        shapes: its arguments as shapes.
        shardings: where they live, of the same structure.
        mesh: a mesh with Explicit axes.

    Raises:
        ProgramError: JAX would have to choose a sharding; the error says on which line.
    """
    args = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, shardings)
    try:
        with jax.set_mesh(mesh):
            return stage(*args)
    except Exception as error:
        if not _is_for_explicit_axes(error, run, shapes, mesh):
            raise
        raise _open_sharding(error, mesh, named(run)) from error


def state_shapes(init: Callable[[Any], Any], mesh: Mesh) -> Any:
    """Trace `init(key)` in the context of a mesh of any axes; return the state as shapes and dtypes.

    Raises:
        ProgramError: a leaf of the state is not an array; or axes are Explicit and JAX would have to choose a sharding.
    """
    try:
        return abstract_init(init)
    except Exception as error:
        if isinstance(error, ProgramError) or not is_explicit(mesh):
            raise
        key = jax.eval_shape(lambda: jax.random.key(0))
        if not _is_for_explicit_axes(error, init, (key,), mesh):
            raise
        raise _open_sharding(error, mesh, f"init {name_of(init)}") from error


def _is_for_explicit_axes(error: Exception, function: Callable[..., Any], shapes: Any, mesh: Mesh) -> bool:
    """Return whether an error comes from shardings in types: on Auto axes the function can then be traced."""
    if is_sharding_error(error):
        return True
    auto = Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))
    try:
        with jax.set_mesh(auto), fresh_traces():
            without = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), shapes)
            jax.eval_shape(lambda *args: function(*args), *without)
    except Exception:  # whatever it is, it also stops a program whose axes are not Explicit
        return False
    return True


def _open_sharding(error: Exception, mesh: Mesh, what: str) -> ProgramError:
    sizes = ", ".join(f"{axis}={size}" for axis, size in mesh.shape.items())
    kind, fix = next((advice for words, advice in _ADVICE.items() if words in str(error)), _OTHER)
    backward = frames_of_forward_pass(error, ignoring=_MACHINERY)
    here, *callers = frames_of_error(error, ignoring=_MACHINERY) or backward or [Frame("an unknown line", 0, "")]
    lines = [_source(here)]
    if is_installed(here.file):
        lines += [f"called from {_located(caller)}" for caller in callers if not is_installed(caller.file)][:1]
    if backward and backward[0] != here:
        lines += [f"in the backward pass of {_located(backward[0])}", f"  {_source(backward[0])}"]
    lines += ["JAX says:", *(f"  {line}" for line in str(error).splitlines() if line)]
    fix += f"\nor leave the choice to XLA: outlay.mesh({sizes})"
    problem = Problem(kind, _located(here), "\n    ".join(line for line in lines if line.strip()), fix)
    return ProgramError(
        f"{what} leaves a sharding open, which the Explicit axes of this mesh ({sizes}) ask for\n{problem.text()}\n"
        "  JAX stops at the first such line; further ones may follow"
    )


def _located(frame: Frame) -> str:
    return f"{frame.file}:{frame.line} in {frame.function}"


def _source(frame: Frame) -> str:
    return linecache.getline(frame.file, frame.line).strip()
