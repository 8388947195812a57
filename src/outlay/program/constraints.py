"""Place the values that a step constrains, and its outputs, as the rules say."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from outlay.arrays.shardings import mover, sharding
from outlay.core.constrain import use_resolver, without_own_axes
from outlay.core.error_types import Problem, ProgramError
from outlay.core.paths import first_part, map_with_paths, split_path, under
from outlay.core.quantities import counted
from outlay.core.suggest import did_you_mean
from outlay.layout.check_rules import OUTPUTS
from outlay.layout.layout import Layout
from outlay.layout.placement import spec_dims
from outlay.layout.plan import Plan
from outlay.program.abstract import Traced
from outlay.program.modes import Step
from outlay.program.passes import Planned


def wrap(step: Step, planned: Planned) -> Step:
    """Wrap a step so that its named values and its outputs are placed, and named for who stores them.

    On shards nothing can be placed any more, and a graph that is split by rows speaks of the devices itself.
    """
    if planned.runs_on_shards or planned.is_split_by_rows:
        return step
    plan, mesh = planned.plan, planned.mesh
    leaves = [leaf for leaf in plan.of_kind("intermediate") if leaf.is_placed]
    ruled, specs = {leaf.path: sharding(leaf, mesh) for leaf in leaves}, {leaf.path: leaf.spec for leaf in leaves}
    named, move = naming(planned), mover(mesh)

    def place(where: str | P, tree: Any, optional: bool) -> Any:
        if mesh.size == 1:
            return named(where, tree)

        def one(path: str, value: Any) -> Any:
            chosen = NamedSharding(mesh, where) if isinstance(where, P) else ruled.get(under(where, path))
            inside = jax.sharding.get_abstract_mesh()
            if chosen is None or len(inside.manual_axes) == len(mesh.shape):
                return value
            if inside.manual_axes and isinstance(chosen, NamedSharding):
                chosen = NamedSharding(inside, without_own_axes(chosen.spec))
            return move(value, chosen)

        return named(where, map_with_paths(one, tree))

    @functools.wraps(step)
    def placed(state: Any, batch: Any) -> Any:
        with use_resolver(place, specs):
            new_state, outputs = step(state, batch)
            return new_state, place(OUTPUTS, outputs, True)

    return placed


def naming(planned: Planned) -> Callable[[str | P, Any], Any]:
    """Return what names the values of a tree by their paths, for rules that store them; usually nothing does."""
    if not planned.stores:
        return lambda where, tree: tree
    from outlay.program.rematerialization import naming_by

    return naming_by(planned.plan)


def check(planned: Planned) -> None:
    """Raise for names that no rule matches, and for specs whose axes the mesh lacks; see `check_constraints`."""
    check_constraints(planned.traced, planned.layout, planned.plan)


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
