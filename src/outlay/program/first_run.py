"""Run a step for the first time, and wait: JAX returns before a step has run, so errors of XLA come much later.

They are then said by whatever reads a value first, and XLA repeats itself once for each function in between.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh

from outlay.arrays.shardings import is_elsewhere
from outlay.core.error_types import ProgramError
from outlay.core.paths import flatten_paths
from outlay.devices.mesh_info import processes_of
from outlay.layout.plan import Plan

_SAID_AGAIN = re.compile(r"(\b[A-Z][\w ]{8,60}: )\1+")


def run_first(run: Callable[[Any, Any], Any], state: Any, batch: Any) -> Any:
    """Return `run(state, batch)` when it has run.

    Raises:
        ProgramError: what was passed could not be computed, so that it is not the step that failed.
    """
    for what, tree in (("state", state), ("batch", batch)):
        try:
            jax.block_until_ready(tree)
        except jax.errors.JaxRuntimeError as error:
            raise ProgramError(
                f"the {what} that was passed could not be computed: the function that made it failed, not this step\n"
                f"  XLA says: {said_once(str(error)).strip()}\n"
                f"  fix: jax.block_until_ready({what}) after the function that makes it; outlay doctor --message says "
                "what a message of XLA means"
            ) from None
    return jax.block_until_ready(run(state, batch))


def check_outputs(state: Any, plan: Plan, mesh: Mesh) -> None:
    """Compare where the first step left its state with where the plan says.

    Raises:
        ProgramError: some leaf came back elsewhere.
    """
    planned = {leaf.path: leaf for leaf in plan}
    leaves = flatten_paths(state)[0]
    if any(is_elsewhere(leaf, planned[path], mesh) for path, leaf in leaves):  # else nothing has to be worded
        from outlay.program.diagnose import elsewhere

        if problem := elsewhere(leaves, plan, mesh):
            raise problem


def wait_for_others(first_run_of: str, step: Callable[..., Any], mesh: Mesh) -> None:
    """Wait until all processes of a mesh are here, if there are several.

    Raises:
        ProgramError: some have not arrived.
    """
    if processes_of(mesh):
        from outlay.program.consistency import wait_for_all

        wait_for_all(first_run_of, step, mesh)


def said_once(text: str) -> str:
    """Leave out what XLA repeats.

    >>> said_once("INTERNAL: Error dispatching computation: Error dispatching computation: no memory")
    'INTERNAL: Error dispatching computation: no memory'
    """
    return _SAID_AGAIN.sub(r"\1", text)
