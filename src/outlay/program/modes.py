"""The ways to execute one layout: what a mode makes of the user's step before it is compiled.

* `auto`: XLA partitions the step; the layout is where arrays live before and after it.
* `manual`: collectives written by hand. A step that says where it sums over its batch (`outlay.train_step` does) has
  its gradients taken device by device, and the rest, the optimizer's update, stays automatic. Any other step runs as
  a whole on each device's pieces, and says itself what is shared, with `jax.lax` collectives over the mesh's axes. A
  graph loop is split by the rows of its parts.
* `placed`: the parts of a graph loop are programs of their own, each on its devices (`execute/placed/`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from outlay.arrays.shardings import sharding
from outlay.core.constrain import resolving, summing
from outlay.core.error_types import Problem, ProgramError
from outlay.core.paths import first_part, map_with_paths, split_path, under
from outlay.core.quantities import counted
from outlay.core.suggest import did_you_mean
from outlay.layout.check_rules import OUTPUTS
from outlay.layout.layout import Layout
from outlay.layout.placement import spec_dims
from outlay.layout.plan import Plan
from outlay.program.abstract import Traced
from outlay.program.by_rows import ByRows
from outlay.program.execution import Mode, Step
from outlay.program.manual_gradients import by_hand
from outlay.program.manual_step import on_pieces
from outlay.program.storing import Storing, fetch_from_host


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
        run = with_constraints(step, plan, mesh)
    elif sums_over_batch:
        run = _with_manual_gradients(with_constraints(step, plan, mesh), plan, mesh)
    else:
        run = on_pieces(step, plan, mesh)
    return fetch_from_host(run, plan, mesh)


def _with_manual_gradients(step: Step, plan: Plan, mesh: Mesh) -> Step:
    @functools.wraps(step)
    def summed(state: Any, batch: Any) -> Any:
        with summing(by_hand(plan, mesh)):
            return step(state, batch)

    return summed


def with_constraints(step: Callable[[Any, Any], Any], plan: Plan, mesh: Mesh) -> Callable[[Any, Any], Any]:
    """The step with the values that it names, and its outputs, placed and stored as rules say."""
    ruled = {leaf.path: sharding(leaf, mesh) for leaf in plan.of_kind("intermediate") if leaf.is_placed}
    specs = {leaf.path: leaf.spec for leaf in plan.of_kind("intermediate") if leaf.is_placed}
    storing = Storing(plan)
    # On Explicit axes a constraint only asserts, and a reshard moves; on Auto axes a reshard is refused.
    move = jax.reshard if AxisType.Explicit in mesh.axis_types else jax.lax.with_sharding_constraint

    def place(where: str | P, tree: Any, optional: bool) -> Any:
        if mesh.size == 1:
            return storing.named(where, tree)

        def one(path: str, value: Any) -> Any:
            chosen = NamedSharding(mesh, where) if isinstance(where, P) else ruled.get(under(where, path))
            return value if chosen is None else move(value, chosen)

        return storing.named(where, map_with_paths(one, tree))

    @functools.wraps(step)
    def placed(state: Any, batch: Any) -> Any:
        with resolving(place, specs):
            new_state, outputs = step(state, batch)
            return new_state, place(OUTPUTS, outputs, True)

    return storing.step(placed)


def check_constraints(traced: Traced, layout: Layout, plan: Plan) -> None:
    """Raise for names that no rule speaks of, and for specs whose axes the mesh lacks; all at once.

    Raises:
        ProgramError: with every offender.
    """
    problems = []
    placed = [split_path(leaf.path) for leaf in plan.of_kind("intermediate")]
    for name in traced.required_names:
        parts = split_path(name)
        if not any(path[: len(parts)] == parts for path in placed):
            what = "the step constrains values by this name, but no rule of the layout speaks of it"
            hint = did_you_mean(name, {first for rule in layout if (first := first_part(rule.pattern))})
            fix = (
                f'{hint}\nor add ("{name}.**", P(...)), or let layouts be silent: constrain(x, "{name}", optional=True)'
            )
            problems.append(Problem("name without a rule", name, what, fix))
    for spec in traced.specs:
        unknown = [axis for axes in spec_dims(spec, 0) for axis in axes if axis not in plan.mesh.axis_sizes]
        if unknown and plan.mesh.num_devices > 1:
            what = f"the step constrains a value to {spec}, but {plan.mesh} has no axis {unknown[0]!r}"
            problems.append(Problem("unknown axis", str(spec), what, did_you_mean(unknown[0], plan.mesh.axis_sizes)))
    if problems:
        head = f"{counted(len(problems), 'value')} that the step constrains cannot be placed:"
        raise ProgramError(head, problems)
