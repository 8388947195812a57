"""Explain why a call fails: which leaf was used up, is missing, or lives elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
from jax.sharding import Mesh

from outlay.arrays.check_arrays import leaf_differences
from outlay.arrays.shardings import is_elsewhere
from outlay.core.array_leaves import arrays_only
from outlay.core.error_types import Problem, ProgramError
from outlay.core.flat_nodes import flat_nodes
from outlay.core.paths import flatten_paths, under
from outlay.core.quantities import counted, listed, plural
from outlay.core.static_facts import listed_differences, static_differences
from outlay.devices.device_names import format_devices
from outlay.devices.mesh_info import check_runnable
from outlay.layout.leaf_plan import LeafPlan
from outlay.layout.plan import Plan


def diagnose(state: Any, batch: Any, planned: tuple[Any, Any], plan: Plan, mesh: Mesh) -> ProgramError | None:
    """Return the error to raise instead of JAX's, or None if state and batch are as planned.

    Args:
        state: what was passed as state.
        batch: what was passed as batch.
        planned: state and batch as shapes, in the containers that the program was made for.
        plan: where every leaf lives.
        mesh: the mesh of the plan.

    Raises:
        ProgramError: nothing runs on this mesh, whatever state and batch are.
    """
    check_runnable(mesh, "a step cannot run")
    state, batch = arrays_only(state), flat_nodes(batch)
    leaves = [*_leaves(state, ""), *_leaves(batch, "batch")]
    differing = leaf_differences(state, plan.state) + leaf_differences(batch, plan.of_kind("batch"), root="batch")
    return (
        _error("state or batch are not what this program was made for", differing)
        or _other_container("state", state, planned[0])
        or _other_container("batch", batch, planned[1])
        or elsewhere(leaves, plan, mesh)
    )


def donated_error(state: Any, batch: Any) -> ProgramError:
    """Return the error for arrays that were donated to an earlier step."""
    leaves = [*_leaves(state, ""), *_leaves(batch, "batch")]
    deleted = [path for path, leaf in leaves if isinstance(leaf, jax.Array) and leaf.is_deleted()]
    return ProgramError(
        "this state was used already: a step donates its state, so "
        f"{counted(len(deleted), 'leaf is', 'leaves are')} gone: {listed(deleted, 8)}\n"
        "  fix: use the state that the step returns: state, outputs = program(state, batch)"
    )


def traced_call_error(what: str) -> ProgramError:
    """Return the error for a program that is called while JAX traces."""
    return ProgramError(
        f"{what} cannot be called under jax.jit, grad, vmap, scan or eval_shape: it is compiled already, for its own "
        "mesh, and donates its state\n"
        "  fix: call it from plain Python, for step in range(n): state, outputs = program(state, batch). Transform "
        "its step instead: outlay.program(jax.vmap(step), ...), a jax.lax.scan inside it, or "
        "jax.grad(program.step); for shapes alone, program.state_shapes and program.output_shapes"
    )


def check_devices(plan: Plan) -> None:
    """Raise for leaves that `on` puts on a part of the mesh: one compiled step spans the whole mesh.

    Raises:
        ProgramError: with the leaves and their devices.
    """
    apart = [leaf for leaf in plan if leaf.device_ids != plan.mesh.device_ids]
    if apart:
        lines = [f"  {leaf.path}: device {', '.join(map(str, leaf.device_ids))} ({leaf.rule})" for leaf in apart]
        head = (
            f"{counted(len(apart), 'leaf lives', 'leaves live')} on a part of {plan.mesh}, but a compiled step "
            "needs every leaf on the whole mesh:"
        )
        fix = (
            "  fix: split them over a mesh axis instead of on()/by_module(); outlay.arrays.put only moves arrays\n"
            "  or, for the parts of a graph, an outlay.graph.GraphLoop in mode placed"
        )
        raise ProgramError("\n".join([head, *lines, fix]))


def _leaves(tree: Any, root: str) -> list[tuple[str, Any]]:
    return [(under(root, path), leaf) for path, leaf in flatten_paths(tree)[0]]


def are_flags_alone(planned: Any, given: Any) -> bool:
    """Return whether two trees of the same leaves differ in flags, and in nothing else."""
    differences = static_differences(planned, given)
    return bool(differences) and all(each.is_flag for each in differences)


def other_settings(what: str, planned: Any, given: Any) -> ProgramError | None:
    """Return the error for a tree with the planned leaves and something else that is no array, named by attribute.

    Args:
        what: what it is, such as `state`.
        planned: the tree that the program was made for.
        given: the tree.
    """
    if not (differences := static_differences(planned, given)):
        return None
    return ProgramError(
        "\n".join(
            [
                f"the {what} has the planned leaves in other containers, or with other settings:",
                *listed_differences(differences),
                f"  fix: pass the {what} in the containers and with the settings of the program, or make one for these",
            ]
        )
    )


def _other_container(what: str, given: Any, planned: Any) -> ProgramError | None:
    if jax.tree.structure(given) == jax.tree.structure(planned):
        return None
    return other_settings(what, planned, given) or ProgramError(
        f"the {what} has the planned leaves in other containers\n"
        f"  fix: pass the {what} in the containers that the program was made with"
    )


def elsewhere(leaves: Iterable[tuple[str, Any]], plan: Plan, mesh: Mesh) -> ProgramError | None:
    """Return the error for those leaves, given by path, that do not live where the plan says; None if all do."""
    planned = {leaf.path: leaf for leaf in plan}
    problems = [
        Problem(
            "lives elsewhere", path, _at_and_planned(leaf.sharding, planned[path], plan, mesh), _move(planned[path])
        )
        for path, leaf in leaves
        if is_elsewhere(leaf, planned[path], mesh)
    ]
    return _error("arrays do not live where the plan says", problems)


def _at_and_planned(at: Any, leaf: LeafPlan, plan: Plan, mesh: Mesh) -> str:
    """Say where an array is and where it should be; if both specs read alike, the meshes differ."""
    words, planned = f"at {at}", f"planned {_where(leaf, plan)}"
    if getattr(at, "spec", None) != leaf.spec:
        return f"{words}, {planned}"
    devices = list(at.mesh.devices.flat)
    if set(devices) == set(mesh.devices.flat):
        other = "the same devices in another order" if devices != list(mesh.devices.flat) else "axes of other sizes"
    else:
        other = format_devices([device.id for device in devices])
    axes = ",".join(f"{axis}={size}" for axis, size in at.mesh.shape.items())
    return f"{words}, of another mesh: {axes} ({other}); {planned} on {plan.mesh}"


def _where(leaf: LeafPlan, plan: Plan) -> str:
    if leaf.device_ids == plan.mesh.device_ids:
        return str(leaf.spec)
    return f"on {plural(len(leaf.device_ids), 'device')} {', '.join(map(str, leaf.device_ids))}"


def _move(leaf: LeafPlan) -> str:
    if leaf.kind == "batch":
        return "pass the batch as numpy arrays, or device_put it with the plan's spec"
    return "place it first: state = outlay.arrays.put(state, program.plan, program.mesh)"


def _error(headline: str, problems: list[Problem]) -> ProgramError | None:
    if not problems:
        return None
    return ProgramError(f"{headline}: {counted(len(problems), 'problem')}", problems)
