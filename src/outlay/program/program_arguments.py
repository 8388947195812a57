"""What a program takes: step, init, mesh and mode when it is made; when it is called, values, and no memory twice."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeGuard, get_args

import jax
from jax.sharding import Mesh

from outlay.arrays.host_values import hold, take_tree
from outlay.core.array_leaves import arrays_only
from outlay.core.error_types import ProgramError
from outlay.core.jax_compat import memory_of
from outlay.devices.mesh_info import is_explicit
from outlay.layout.layout import Layout
from outlay.program.modes import Mode

if TYPE_CHECKING:
    from outlay.graph.graph_loop import GraphLoop


def check_arguments(step: Any, init: Any, mesh: Any) -> None:
    """Raise if step, init or mesh is something else, or step and init are swapped.

    Raises:
        ProgramError: with what was passed, and what to pass.
    """
    for name, given, form in (("step", step, "step(state, batch) -> (state, outputs)"), ("init", init, "init(key)")):
        if not callable(given):
            what = f"{name} must be a function {form}, and is a {type(given).__name__}"
            fix = "init=lambda key: state" if name == "init" else f"def {form.partition(' ->')[0]}: ..."
            raise ProgramError(f"{what}\n  fix: {fix}")
        if fix := _model_refused(name, given):
            what = f"{name} must be a function {form}, and is a model, a {type(inspect.unwrap(given)).__name__}"
            raise ProgramError(f"{what}\n  fix: {fix}")
    if _takes(step, 1) and not _takes(step, 2) and _takes(init, 2) and not _takes(init, 1):
        raise ProgramError(
            "step takes one argument and init takes two: they are swapped\n"
            "  fix: outlay.program(step, init, inputs, ...), as step(state, batch) and init(key)"
        )
    if not isinstance(mesh, Mesh):
        raise ProgramError(
            f"mesh must be a jax.sharding.Mesh, and is {'None' if mesh is None else f'a {type(mesh).__name__}'}"
            "\n  fix: mesh=outlay.mesh(data=-1), or outlay.mesh(data=4, model=2)"
        )


def no_stages(mode: str) -> ProgramError:
    """Return the error for a schedule where no stages of a pipeline could follow it."""
    here = "the layout has no pipeline rule" if mode == "placed" else f"this is mode {mode}"
    return ProgramError(
        f"a schedule says in which order the stages of a pipeline work in mode placed, and {here}"
        '\n  fix: mode="placed" with a rule of outlay.layout.pipeline("stage", microbatches=8); or leave schedule= out'
    )


def with_history(init: Callable[[Any], Any], layout: Layout) -> Callable[[Any], Any]:
    """Return an init whose state has room for what the layout has a step keep; see `begun`."""
    if not layout.keeps_scales:
        return init
    return functools.wraps(init, updated=())(lambda key: begun(init(key), layout, is_new=True))


def begun(state: Any, layout: Layout, *, is_new: bool = False) -> Any:
    """Return a state with room for what the layout has a step keep, such as scales of products in FP8."""
    if not layout.keeps_scales:
        return state
    from outlay.program.fp8 import delayed_scaling

    return delayed_scaling.begun(state, layout, is_new=is_new)


def with_key(init: Any) -> Any:
    """Return an init function that takes a key: one without arguments makes the same state from any key."""
    if not callable(init) or _takes(init, 1) or not _takes(init, 0):
        return init
    return functools.wraps(init, updated=())(lambda key: init())


def _model_refused(name: str, given: Any) -> str:
    """Return what to write instead of a model; empty if this is none."""
    given = inspect.unwrap(given)  # what the program has made of it wraps it
    of_flax = any(kind.__module__.startswith(("flax.nnx", "flax.linen")) for kind in type(given).__mro__)
    if isinstance(given, type) or not of_flax:
        return ""
    if name == "init":
        return "init=lambda key: model.init(key, x) for Linen; def init(key): return Model(rngs=nnx.Rngs(key)) for NNX"
    return (
        "def step(state, batch): ..., which calls the model and returns (new_state, outputs); "
        "outlay.train_step(loss, optimizer) makes one from a loss"
    )


def _takes(function: Any, num: int) -> bool:
    try:
        inspect.signature(function).bind(*range(num))
    except TypeError:
        return False
    except ValueError:  # a function without a signature
        return True
    return True


def is_graph_loop(step: Any) -> TypeGuard[GraphLoop]:
    """Return whether a step is a graph loop; a process that makes none does not import the class to ask."""
    module = sys.modules.get("outlay.graph.graph_loop")
    return module is not None and isinstance(step, module.GraphLoop)


def check_mode(mode: str, mesh: Mesh) -> None:
    """Raise for a mode that does not exist, or not on this mesh."""
    if mode not in get_args(Mode):
        from outlay.core.suggest import did_you_mean

        raise ProgramError(f"there is no mode {mode!r}: {did_you_mean(mode, get_args(Mode))}")
    if mode != "auto" and is_explicit(mesh):
        raise ProgramError(
            f"mode {mode} takes a mesh with automatic axes: inside it each device's pieces have no sharding to be "
            "explicit about\n  fix: outlay.mesh(...) without explicit=True"
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


def take_arguments(state: Any, batch: Any) -> tuple[Any, Any]:
    """Return state and batch with each value as JAX takes it.

    Raises:
        ProgramError: JAX cannot hold some, or they are no arrays; all are listed.
    """
    (taken, of_state), (batch, of_batch) = take_tree(state), take_tree(batch, "batch")
    if of_state:  # a whole module of Equinox has functions and texts among its leaves
        taken, of_state = take_tree(arrays_only(state))
    if problems := of_state + of_batch:
        raise ProgramError(hold("state and batch hold", problems), problems)
    return taken, batch


def without_shared_memory(state: Any, batch: Any) -> tuple[Any, Any]:
    """Copy leaves of state and batch that share memory with an earlier leaf.

    Tied weights, or a target network set to the parameters, are one array; donating it twice ends the process.
    """
    seen: set[int] = set()

    def one(leaf: Any) -> Any:
        memory = memory_of(leaf) if isinstance(leaf, jax.Array) else None
        if memory is None or memory not in seen:
            seen.update(() if memory is None else (memory,))
            return leaf
        return jax.device_put(leaf, leaf.sharding, may_alias=False) if leaf.committed else leaf.copy()

    return jax.tree.map(one, state), jax.tree.map(one, batch)
