"""The ways to execute one layout: what a mode makes of the user's step before it is compiled.

* `auto`: XLA partitions the step; the layout is where arrays live before and after it.
* `manual`: collectives written by hand. A step that says where it sums over its batch (`outlay.train_step` does) has
  its gradients taken device by device, and the rest, the optimizer's update, stays automatic. Any other step runs as
  a whole on each device's pieces, and says itself what is shared, with `jax.lax` collectives over the mesh's axes. A
  rollout is split by the rows of its parts.
* `placed`: the parts of a rollout are programs of their own, each on its devices (`execute/placed/`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, get_args

import jax
from jax.sharding import Mesh

from outlay.arrays.shardings import under
from outlay.core.constrain import resolving, summing
from outlay.core.error_types import ProgramError
from outlay.core.paths import map_with_paths
from outlay.core.suggest import did_you_mean
from outlay.layout.check_rules import OUTPUTS
from outlay.layout.plan import Plan
from outlay.program.abstract import named, refuse_drift, refuse_other_results, unknown_axis
from outlay.program.by_hand import by_hand
from outlay.program.by_rows import ByRows
from outlay.program.explicit import is_explicit
from outlay.program.host_memory import fetching
from outlay.program.intermediates import placing
from outlay.program.outputs import output_specs, refuse_copies
from outlay.program.storing import Storing

Mode = Literal["auto", "manual", "placed"]
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


def in_mode(mode: Mode, step: Step, plan: Plan, mesh: Mesh, *, sums_over_batch: bool) -> Step:
    """The step as its mode executes it.

    Args:
        mode: which way.
        step: the user's step.
        plan: where every leaf lives.
        mesh: the mesh of the plan.
        sums_over_batch: whether the step says where it sums over its batch.
    """
    if isinstance(step, ByRows):  # which speaks of the devices itself
        run = step
    elif mode == "auto":
        run = placing(step, plan, mesh)
    elif sums_over_batch:
        run = _summing_by_hand(placing(step, plan, mesh), plan, mesh)
    else:
        run = _wholly_by_hand(step, plan, mesh)
    return fetching(run, plan, mesh)


def _summing_by_hand(step: Step, plan: Plan, mesh: Mesh) -> Step:
    @functools.wraps(step)
    def summed(state: Any, batch: Any) -> Any:
        with summing(by_hand(plan, mesh)):
            return step(state, batch)

    return summed


def _wholly_by_hand(step: Step, plan: Plan, mesh: Mesh) -> Step:
    specs = {leaf.path: leaf.spec for leaf in plan}
    storing = Storing(plan)

    @functools.wraps(step)
    def by_pieces(state: Any, batch: Any) -> Any:
        outputs = output_specs(step, plan, state, batch, mesh)

        def checked(state: Any, batch: Any) -> Any:
            with resolving(lambda where, tree, optional: storing.named(where, tree)):
                result = step(state, batch)
            refuse_other_results(step, result)
            refuse_drift(step, state, result[0])  # a piece gathered and returned whole would pass for a larger leaf
            refuse_copies(result[1], outputs)
            return result

        state_specs = map_with_paths(lambda path, _: specs[path], state)
        batch_specs = map_with_paths(lambda path, _: specs[under("batch", path)], batch)
        mapped = functools.partial(
            jax.shard_map, checked, mesh=mesh, in_specs=(state_specs, batch_specs), out_specs=(state_specs, outputs)
        )
        try:
            return mapped()(state, batch)
        except (AssertionError, NameError, ValueError) as error:
            problem = _differs(step, mesh, error) or _unknown_axis(step, mesh, mapped(check_vma=False), state, batch)
            if problem is None:
                raise
            raise problem from error

    return storing.step(by_pieces)


def _differs(step: Step, mesh: Mesh, error: Exception) -> ProgramError | None:
    if "out_specs" not in str(error):
        return None
    axes = ", ".join(repr(axis) for axis in mesh.axis_names)
    return ProgramError(
        f"in mode manual {named(step)} runs on each device's pieces, and what it returns differs "
        f"from device to device where it must not: outputs are the same everywhere, unless a rule says how they "
        f"are split, and state is as planned\n"
        f"  fix: reduce it before returning: jax.lax.psum(x, axis) or jax.lax.pmean(x, axis), axis of {axes}\n"
        f'  or, where an output is to be split, add a rule such as ("{OUTPUTS}.**", P({mesh.axis_names[0]!r}))\n'
        f"  JAX says: {error}"
    )


def _unknown_axis(step: Step, mesh: Mesh, unchecked: Step, state: Any, batch: Any) -> ProgramError | None:
    """The error for an axis that the mesh lacks; `check_vma` stumbles over it before JAX looks the name up."""
    try:
        jax.eval_shape(unchecked, state, batch)
    except NameError as error:
        return unknown_axis(step, mesh.axis_names, error)
    except Exception:  # whatever it is, the first error says it better
        return None
    return None
