"""What a program is made from: whether step, init and mesh are what they must be, and what to pass instead."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from jax.sharding import Mesh

from outlay.core.error_types import ProgramError


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
