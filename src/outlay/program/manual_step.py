"""Run a whole step of mode manual on each device's shards: its plan, its outputs, and the step itself.

Outputs are the same on every device unless rules for `outputs.**` split them. Then each device has a shard, and only
the rule tells the size of the whole output.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from outlay.core.constrain import use_resolver
from outlay.core.error_types import Problem, ProgramError
from outlay.core.jax_tracing import varying_axes
from outlay.core.paths import flatten_paths, map_with_paths, under
from outlay.core.quantities import counted, listed
from outlay.layout.check_rules import OUTPUTS
from outlay.layout.layout import Layout
from outlay.layout.leaf_plan import LeafPlan
from outlay.layout.placement import Storage, spec_dims
from outlay.layout.plan import Plan
from outlay.layout.rule import Rule
from outlay.program.abstract import as_shapes, check_results, check_state_type, named, unknown_axis
from outlay.program.constraints import naming
from outlay.program.modes import Step
from outlay.program.passes import Planned

FROM_A_LOSS = "give its loss to outlay.train_step(loss, optimizer), whose collectives mode manual writes by itself"
"""What to do with a training step that says nothing of devices."""

_NUM_SHOWN = 3
"""Leaves that are named where a step cannot work on shards."""


def plan_per_shard(layout: Layout, step: Step, state: Any, batch: Any, mesh: Mesh) -> Plan:
    """Plan a step that runs as a whole on each device's shards, and its outputs if rules match them.

    Args:
        layout: the rules.
        step: the user's step.
        state: the state as shapes.
        batch: the batch as shapes.
        mesh: the mesh.
    """
    storing = [rule for rule in layout if _stores_values(rule, state)]
    of_outputs = any(rule.names(OUTPUTS) for rule in layout)
    plan = Layout([rule for rule in layout if rule not in storing]).plan(state, mesh, batch=batch)
    if not (storing or of_outputs):
        return layout.plan(state, mesh, batch=batch, intermediates={})
    pieces, values = _pieces(step, plan, state, batch, mesh)
    # The rule decides the size of the whole output; this size is divisible under every rule.
    sizes = jax.tree.map(lambda x: jax.ShapeDtypeStruct([size * mesh.size for size in x.shape], x.dtype), pieces)
    plan = layout.plan(state, mesh, batch=batch, intermediates={**values, **({OUTPUTS: sizes} if of_outputs else {})})
    shapes_of_pieces = {under(OUTPUTS, path): piece.shape for path, piece in flatten_paths(pieces)[0]}
    return dataclasses.replace(
        plan, leaves=tuple(_of_pieces(leaf, shapes_of_pieces.get(leaf.path), mesh) for leaf in plan)
    )


def output_specs(step: Step, plan: Plan, state: Any, batch: Any, mesh: Mesh) -> Any:
    """Return the specs of the outputs of a manual step: one spec if all are replicated, or a tree of specs."""
    specs = {leaf.path: leaf.spec for leaf in plan.of_kind("intermediate")}
    if not specs:
        return P()
    pieces, _ = _pieces(step, plan, state, batch, mesh)
    return map_with_paths(lambda path, _: specs.get(under(OUTPUTS, path), P()), pieces)


def check_output_pieces(outputs: Any, specs: Any) -> None:
    """Raise for outputs that are the same on devices over which a rule splits them: the whole would hold copies.

    Args:
        outputs: one device's, while `jax.shard_map` traces with `check_vma=True`.
        specs: what `output_specs` gave.
    """
    if isinstance(specs, P):
        return
    problems = []
    for (path, output), spec in zip(flatten_paths(outputs)[0], jax.tree.leaves(specs), strict=True):
        same = [axis for axes in spec_dims(spec, 0) for axis in axes if axis not in varying_axes(output)]
        if same:
            what = f"a rule splits it by {spec}, but along {same[0]!r} every device returns the same array"
            fix = "return each device's own shard, or delete the rule"
            problems.append(Problem("copies", under(OUTPUTS, path), what, fix))
    if problems:
        head = f"{counted(len(problems), 'output')} of a step in mode manual not as the layout says:"
        raise ProgramError(head, problems)


def _stores_values(rule: Rule, state: Any) -> bool:
    """Return whether a rule says only how values inside the step are stored."""
    if not isinstance(rule.placement, Storage) or rule.spec is not None:
        return False
    return not any(rule.matches(path, "state") for path, _ in flatten_paths(state)[0])


def _pieces(step: Step, plan: Plan, state: Any, batch: Any, mesh: Mesh) -> tuple[Any, dict[str, Any]]:
    """Return one device's outputs as shapes, and the named values of the step by name."""
    seen = []
    values: dict[str, Any] = {}

    def note(where: str | P, tree: Any, optional: bool) -> Any:
        if isinstance(where, str):
            values[where] = as_shapes(tree)
        return tree

    def look(state: Any, batch: Any) -> None:
        with use_resolver(note):
            result = step(state, batch)
        check_results(step, result, state)
        seen.append(as_shapes(result[1]))

    in_specs = _in_specs(plan, state, batch)
    mapped = jax.shard_map(look, mesh=mesh, in_specs=in_specs, out_specs=None, check_vma=False)
    try:
        jax.eval_shape(mapped, state, batch)
    except NameError as error:
        raise unknown_axis(step, mesh.axis_names, error) or error from error
    return seen[-1], values


def _in_specs(plan: Plan, state: Any, batch: Any) -> tuple[Any, Any]:
    """Return how state and batch are split, as trees of specs."""
    specs = {leaf.path: leaf.spec for leaf in plan}
    of_state = map_with_paths(lambda path, _: specs[path], state)
    return of_state, map_with_paths(lambda path, _: specs[under("batch", path)], batch)


def _of_pieces(leaf: LeafPlan, piece: tuple[int, ...] | None, mesh: Mesh) -> LeafPlan:
    if piece is None:
        return leaf
    num_pieces = [math.prod(mesh.shape[axis] for axis in axes) for axes in leaf.dims]
    shape = tuple(size * num for size, num in zip(piece, num_pieces, strict=True))
    return dataclasses.replace(leaf, shape=shape, local_shape=piece)


def wrap(step: Step, planned: Planned) -> Step:
    """Wrap a step as one `jax.shard_map`, in which it sees each device's shards of the state and the batch.

    Raises:
        ProgramError: while it is traced: what it returns differs between devices where it must not, or has other
            shapes than planned, or it names an axis that the mesh lacks.
    """
    plan, mesh, name_values = planned.plan, planned.mesh, naming(planned)

    @functools.wraps(step)
    def on_shards(state: Any, batch: Any) -> Any:
        outputs = output_specs(step, plan, state, batch, mesh)

        def checked(state: Any, batch: Any) -> Any:
            with use_resolver(lambda where, tree, optional: name_values(where, tree)):
                result = step(state, batch)
            check_results(step, result, state)
            # Checked inside: a shard that was gathered and returned would pass outside for one of a larger leaf.
            check_state_type(step, state, result[0])
            check_output_pieces(result[1], outputs)
            _check_is_same(step, mesh, (in_specs[0], outputs), result)
            return result

        in_specs = _in_specs(plan, state, batch)
        mapped = functools.partial(
            jax.shard_map, checked, mesh=mesh, in_specs=in_specs, out_specs=(in_specs[0], outputs)
        )
        try:
            return mapped()(state, batch)
        except ProgramError:
            raise
        except Exception as error:  # a model's library has errors of its own
            problem = _unknown_axis(step, mesh, mapped(check_vma=False), state, batch) or _for_whole_arrays(
                step, plan, state, batch, error
            )
            if problem is None:
                raise
            raise problem from error

    return on_shards


def _check_is_same(step: Step, mesh: Mesh, specs: tuple[Any, Any], result: tuple[Any, Any]) -> None:
    """Raise for what a step returns that differs between devices along axes that do not split it.

    Args:
        step: the step.
        mesh: the mesh.
        specs: how state and outputs are split; of outputs one spec stands for all.
        result: one device's state and outputs, while `jax.shard_map` traces with `check_vma=True`.
    """
    odd = []
    for tree, split, root in zip(result, specs, ("", OUTPUTS), strict=True):
        leaves = flatten_paths(tree)[0]
        each = [split] * len(leaves) if isinstance(split, P) else jax.tree.leaves(split)
        for (path, leaf), spec in zip(leaves, each, strict=True):
            along = [axis for axes in spec_dims(spec, 0) for axis in axes]
            axes = [axis for axis in mesh.axis_names if axis in varying_axes(leaf) and axis not in along]
            if axes:
                odd.append(f"{under(root, path) or 'the state'} over {', '.join(map(repr, axes))}")
    if not odd:
        return
    axes = ", ".join(repr(axis) for axis in mesh.axis_names)
    raise ProgramError(
        f"in mode manual {named(step)} runs on each device's pieces, and what it returns differs "
        f"from device to device where it must not, {counted(len(odd), 'array')}: {listed(odd, 8)}; outputs are the "
        f"same everywhere, unless a rule says how they are split, and state is as planned\n"
        f"  fix: reduce it before returning: jax.lax.psum(x, axis) or jax.lax.pmean(x, axis), axis of {axes}\n"
        f"  or, for a step that trains: {FROM_A_LOSS}\n"
        f'  or, where an output is to be split, add a rule such as ("{OUTPUTS}.**", P({mesh.axis_names[0]!r}))'
    )


def _for_whole_arrays(step: Step, plan: Plan, state: Any, batch: Any, error: Exception) -> ProgramError | None:
    """Return the error for a step that fails on shards and runs on whole arrays, since it was written for these."""
    if isinstance(error, AssertionError):  # of JAX, which `explaining_mesh_errors` knows
        return None
    try:
        jax.eval_shape(step, state, batch)
    except Exception:  # it is wrong in itself, or names axes, so that it is meant for pieces
        return None
    split = [leaf for leaf in plan if leaf.is_split]
    pieces = [f"  {leaf.path} is {leaf.local_shape} there, and {leaf.shape} as a whole" for leaf in split[:_NUM_SHOWN]]
    if len(split) > _NUM_SHOWN:
        pieces.append(f"  and {counted(len(split) - _NUM_SHOWN, 'more array')} in pieces")
    words = str(error).splitlines()[0] if str(error) else ""
    return ProgramError(
        f"{named(step)} is written for whole arrays, and in mode manual a step that is not from outlay.train_step runs "
        f"on each device's pieces, where it fails: {type(error).__name__}: {words}\n"
        + "\n".join(pieces)
        + f'\n  fix: {FROM_A_LOSS}, or mode="auto", which takes the step as it is'
    )


def _unknown_axis(step: Step, mesh: Mesh, unchecked: Step, state: Any, batch: Any) -> ProgramError | None:
    """Return the error for an axis that the mesh lacks; with `check_vma` JAX fails before it looks the name up."""
    try:
        jax.eval_shape(unchecked, state, batch)
    except NameError as error:
        return unknown_axis(step, mesh.axis_names, error)
    except Exception:  # whatever it is, the first error says it better
        return None
    return None
