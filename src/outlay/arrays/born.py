"""Arrays born where they live: an init function compiled so that no device ever holds a leaf whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh

from outlay.arrays.shardings import shardings
from outlay.core.annotations import placed_by_plan
from outlay.layout.plan import Plan


def born_sharded(init: Callable[..., Any], shapes: Any, plan: Plan, mesh: Mesh) -> Callable[..., Any]:
    """`init` compiled so that every leaf of its result is computed piece by piece, where the plan puts it.

    Args:
        init: makes the tree; pure.
        shapes: the abstract result of `init`, as from `jax.eval_shape`.
        plan: where each leaf lives.
        mesh: the mesh that the plan was made for.

    Example:
        >>> mesh = outlay.mesh(data=8)
        >>> shapes = {"w": jax.ShapeDtypeStruct((16, 4), jnp.float32)}
        >>> plan = outlay.fsdp(min_size=8).plan(shapes, mesh)
        >>> init = born_sharded(lambda key: {"w": jax.random.normal(key, (16, 4))}, shapes, plan, mesh)
        >>> init(jax.random.key(0))["w"].sharding.spec
        P('data', None)
    """
    # What a tree holds besides arrays (an optimizer's functions) is made anew by each trace of `init`, and JAX would
    # take the two for different trees: every state gets the structure that the shapes have.
    structure = jax.tree.structure(shapes)
    leaves = _leaves(init, shapes, plan, mesh)
    return lambda *args: jax.tree.unflatten(structure, leaves(*args))


def _leaves(init: Callable[..., Any], shapes: Any, plan: Plan, mesh: Mesh) -> Any:
    """The compiled function: the leaves of what `init` makes, in order."""
    return jax.jit(
        lambda *args: jax.tree.leaves(placed_by_plan(init, *args)),
        out_shardings=jax.tree.leaves(shardings(plan, shapes, mesh)),
        compiler_options=_memory_first(mesh),
    )


def _memory_first(mesh: Mesh) -> dict[str, str] | None:
    """Have XLA's CPU compiler make one leaf after another.

    By default it starts all of them at once, and what the random generator needs on the way is then as big as the
    whole state; other compilers order by memory anyway.
    """
    if mesh.devices.flat[0].platform != "cpu":
        return None
    return {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}
