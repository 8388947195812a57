"""Put arrays where a plan says, and move them when the plan changes."""

from __future__ import annotations

import functools
from typing import Any

import jax
from jax.sharding import Mesh

from outlay.layout.plan import Plan
from outlay.meshes.made import refuse_to_run
from outlay.place.matching import refuse_mismatch
from outlay.place.shardings import shardings


def put(tree: Any, plan: Plan, mesh: Mesh) -> Any:
    """Place host or device arrays as the plan says.

    An array that lives there already is not copied: give the result to a program, and the array is used up too.

    Args:
        tree: numpy or JAX arrays of the paths, shapes and dtypes that the plan was made for.
        plan: where each leaf lives.
        mesh: the mesh that the plan was made for.

    Returns:
        The tree as JAX arrays, each committed to its place.

    Raises:
        LayoutError: paths, shapes or dtypes differ from the plan's; every difference is listed.
        ProgramError: the mesh is of compile-only devices.

    Example:
        >>> mesh = outlay.mesh(data=8)
        >>> plan = outlay.fsdp(min_size=8).plan({"w": jnp.ones((16, 4))}, mesh)
        >>> outlay.put({"w": np.ones((16, 4), np.float32)}, plan, mesh)["w"].sharding.shard_shape((16, 4))
        (2, 4)
    """
    refuse_to_run(mesh, "arrays cannot be put")
    refuse_mismatch(tree, plan.state, "the plan")
    return jax.device_put(tree, shardings(plan, tree, mesh))


def reshard(tree: Any, plan: Plan, mesh: Mesh) -> Any:
    """Move arrays that already live on the mesh to another plan, without ever gathering one on a device or the host.

    The old arrays stay valid; drop them to free their memory.

    Args:
        tree: JAX arrays of the paths, shapes and dtypes that the plan was made for.
        plan: where each leaf shall live.
        mesh: the mesh of both plans.

    Raises:
        LayoutError: paths, shapes or dtypes differ from the plan's; every difference is listed.
        ProgramError: the mesh is of compile-only devices.

    Example:
        >>> mesh, tree = outlay.mesh(data=4, model=2), {"w": np.ones((8, 8))}
        >>> by_rows = outlay.Layout([("w", P("data"))]).plan(tree, mesh)
        >>> by_blocks = outlay.Layout([("w", P("model", "data"))]).plan(tree, mesh)
        >>> outlay.reshard(outlay.put(tree, by_rows, mesh), by_blocks, mesh)["w"].sharding.spec
        P('model', 'data')
    """
    refuse_to_run(mesh, "arrays cannot be put")
    refuse_mismatch(tree, plan.state, "the plan")
    wanted = shardings(plan, tree, mesh)
    devices = {leaf.device_ids for leaf in plan.state}
    if devices <= {plan.mesh.device_ids}:
        # One compiled identity: XLA exchanges the pieces; device_put would pass some of them through the host.
        leaves, structure = jax.tree.flatten(wanted)
        return _identity(structure, tuple(leaves))(tree)
    return jax.device_put(tree, wanted)


@functools.lru_cache(maxsize=64)
def _identity(structure: Any, leaves: tuple[Any, ...]) -> Any:
    out = jax.tree.unflatten(structure, leaves)
    return jax.jit(lambda tree: tree, out_shardings=out)
