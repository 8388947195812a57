"""Wrap the user's step for its mode, before it is compiled.

* `auto`: XLA partitions the step; the layout says where arrays live before and after it. Gradients of microbatches are
  added up on each device, and summed over devices once (`summed_once.py`).
* `manual`: collectives written by hand. For a step that says where it sums over its batch (`outlay.train_step` does),
  gradients are taken device by device, and the rest, the optimizer's update, stays automatic. Any other step runs as
  a whole on each device's shards and shares what it must with `jax.lax` collectives over the mesh's axes. A graph loop
  is split by the rows of its parts.
* `placed`: each part of a graph loop is a program on its own devices (`placed_graph.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from outlay.arrays.shardings import sharding
from outlay.core.constrain import Runner, resolving, summing, without_own_axes
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
from outlay.program.storing import Storing, fetch_from_host, mover


def in_mode(
    mode: Mode,
    step: Step,
    plan: Plan,
    mesh: Mesh,
    *,
    sums_over_batch: bool,
    tell: Callable[[str], None] = lambda why: None,
) -> Step:
    """Wrap a step for its mode.

    Args:
        mode: the mode.
        step: the user's step.
        plan: where every leaf lives.
        mesh: the mesh of the plan.
        sums_over_batch: whether the step says where it sums over its batch.
        tell: told why gradients of several microbatches are summed over devices after each, where they are.
    """
    if isinstance(step, ByRows):  # which speaks of the devices itself
        run = step
    elif sums_over_batch:
        # Not the whole step on shards: an optimizer that takes the global norm would see one device's shards only.
        run = _with_gradients(with_constraints(step, plan, mesh), _runner(mode, plan, mesh, tell))
    elif mode == "auto":
        run = with_constraints(step, plan, mesh)
    else:
        from outlay.program.manual_step import run_per_shard

        run = run_per_shard(step, plan, mesh)
    return fetch_from_host(run, plan, mesh)


def step_and_gradients(
    mode: Mode, step: Step, layout: Layout, plan: Plan, mesh: Mesh, *, sums_over_batch: bool
) -> tuple[Step, Runner | None]:
    """Return a step as a mode runs it, and apart from it what takes its gradients, for whoever wants to see them.

    Args:
        mode: the mode.
        step: the user's step.
        layout: the rules, which may name values of the step by their source.
        plan: where every leaf lives.
        mesh: the mesh of the plan.
        sums_over_batch: whether the step says where it sums over its batch.

    Returns:
        The step, and what takes the gradients of its sums; None if they are taken as in any function.
    """
    if mode == "auto" and any(rule.is_by_source for rule in layout):
        from outlay.program.by_source import by_source

        step = by_source(step, layout)
    if not sums_over_batch:
        return in_mode(mode, step, plan, mesh, sums_over_batch=False), None
    runner = _runner(mode, plan, mesh)
    return fetch_from_host(with_constraints(step, plan, mesh), plan, mesh), runner


def _runner(mode: Mode, plan: Plan, mesh: Mesh, tell: Callable[[str], None] = lambda why: None) -> Runner:
    if mode == "manual":
        from outlay.program.manual_gradients import gradient_runner

        return gradient_runner(plan, mesh)
    from outlay.program.summed_once import sums_once

    return sums_once(plan, mesh, tell)


def _with_gradients(step: Step, runner: Runner) -> Step:
    @functools.wraps(step)
    def summed(state: Any, batch: Any) -> Any:
        with summing(runner):
            return step(state, batch)

    return summed


def with_constraints(step: Callable[[Any, Any], Any], plan: Plan, mesh: Mesh) -> Callable[[Any, Any], Any]:
    """Wrap a step so that its named values and its outputs are placed and stored as the rules say."""
    leaves = [leaf for leaf in plan.of_kind("intermediate") if leaf.is_placed]
    ruled, specs = {leaf.path: sharding(leaf, mesh) for leaf in leaves}, {leaf.path: leaf.spec for leaf in leaves}
    storing = Storing(plan)
    move = mover(mesh)

    def place(where: str | P, tree: Any, optional: bool) -> Any:
        if mesh.size == 1:
            return storing.named(where, tree)

        def one(path: str, value: Any) -> Any:
            chosen = NamedSharding(mesh, where) if isinstance(where, P) else ruled.get(under(where, path))
            inside = jax.sharding.get_abstract_mesh()
            if chosen is None or len(inside.manual_axes) == len(mesh.shape):
                return value
            if inside.manual_axes and isinstance(chosen, NamedSharding):
                chosen = NamedSharding(inside, without_own_axes(chosen.spec))
            return move(value, chosen)

        return storing.named(where, map_with_paths(one, tree))

    @functools.wraps(step)
    def placed(state: Any, batch: Any) -> Any:
        with resolving(place, specs):
            new_state, outputs = step(state, batch)
            return new_state, place(OUTPUTS, outputs, True)

    return storing.step(placed)


def check_constraints(traced: Traced, layout: Layout, plan: Plan) -> None:
    """Raise for names that no rule matches, and for specs whose axes the mesh lacks; all at once.

    Raises:
        ProgramError: with every offender.
    """
    problems = []
    placed = [split_path(leaf.path) for leaf in plan.of_kind("intermediate")]
    for name in traced.required_names:
        parts = split_path(name)
        if not any(path[: len(parts)] == parts for path in placed):
            what = "the step constrains values by this name, but no rule of the layout matches it"
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
