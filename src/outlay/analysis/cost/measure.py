"""Time operations that all devices run at once: products, copies, collectives, and empty steps.

Each time is the best of some rounds; `patience` is the length of a round in seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

Exchange = Callable[[jax.Array], jax.Array]

_ROUNDS = 5
_MAX_RUNS = 20_000

GROUP = "group"
"""The mesh axis along which devices communicate; the other axis, `groups`, counts the groups."""


def exchanges(size: int) -> dict[str, Exchange]:
    """Return a function for each kind of collective, for groups of this size."""
    around = [(source, (source + 1) % size) for source in range(size)]
    return {
        "all-reduce": partial(jax.lax.psum, axis_name=GROUP),
        "all-gather": lambda x: jax.lax.all_gather(x[: len(x) // size], GROUP, tiled=True),
        "reduce-scatter": partial(jax.lax.psum_scatter, axis_name=GROUP, tiled=True),
        "all-to-all": partial(jax.lax.all_to_all, axis_name=GROUP, split_axis=0, concat_axis=0, tiled=True),
        "collective-permute": partial(jax.lax.ppermute, axis_name=GROUP, perm=around),
    }


def exchange_seconds(exchange: Exchange, num_bytes: int, mesh: Mesh, patience: float) -> float:
    """Time a collective of this many bytes per device, in all groups of the mesh at once."""

    def body(x: jax.Array, last: jax.Array) -> tuple[jax.Array, jax.Array]:
        # Feed one number of each result into the next run, so that XLA can neither drop nor overlap runs.
        x = x.at[0].set(last)
        return x, exchange(x)[0]

    return _seconds(body, jnp.zeros(num_bytes // 4, jnp.float32), mesh, patience)


def copy_seconds(num_bytes: int, mesh: Mesh, patience: float) -> float:
    """Time reading and writing this many bytes on every device."""
    return _seconds(lambda x, last: (x + last, last + 1), jnp.zeros(num_bytes // 4, jnp.float32), mesh, patience)


def across_rows_seconds(num_bytes: int, width: int, mesh: Mesh, patience: float) -> float:
    """Time adding transposed (width, width) float32 matrices of this many bytes to others, on every device."""
    other = jnp.ones((max(num_bytes // (4 * width**2), 1), width, width), jnp.float32)

    def body(x: jax.Array, last: jax.Array) -> tuple[jax.Array, jax.Array]:
        return x + (other + last).swapaxes(1, 2), last + 1

    return _seconds(body, other, mesh, patience)


def product_seconds(rows: int, width: int, dtype: str, mesh: Mesh, patience: float) -> float:
    """Time a product of (rows, width) and (width, width) on every device."""
    weights = jnp.full((width, width), 1 / width, dtype)
    return _seconds(lambda x, last: (x @ weights, last), jnp.ones((rows, width), dtype), mesh, patience)


def operation_seconds(mesh: Mesh, patience: float) -> float:
    """Time the overhead of one operation: a 4 x 4 product in a long chain."""
    num_more, few = 64, 2

    def body(x: jax.Array, last: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
        for _ in range(count):
            x = x @ x
        return x, last

    times = [_seconds(partial(body, count=count), jnp.eye(4), mesh, patience) for count in (few, few + num_more)]
    # Subtract a short chain: the difference has neither the cost of the call nor that of the loop.
    return max(times[1] - times[0], 0.0) / num_more


def step_seconds(mesh: Mesh) -> float:
    """Time a call of a compiled step that does nothing, until its result is ready."""
    split = jax.NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    state = jax.device_put(jnp.zeros(mesh.size), split)
    step = jax.jit(lambda x: x + 1, out_shardings=split)
    jax.block_until_ready(step(state))
    return min(_timed(lambda: step(state), 20) for _ in range(_ROUNDS)) / 20


def _seconds(body: Callable[..., tuple[jax.Array, jax.Array]], x: Any, mesh: Mesh, patience: float) -> float:
    """Time one run of `body(x, number) -> (x, number)` on every device; the best of some rounds."""

    def many(num_runs: jax.Array, x: jax.Array) -> jax.Array:
        start = (x, jnp.zeros((), jnp.float32))
        x, last = jax.lax.fori_loop(0, num_runs, lambda _, carry: body(*carry), start)
        return last + x.ravel()[0].astype(jnp.float32)

    # check_vma is off: whether the carried values vary over devices depends on the kind of collective.
    by_device = jax.shard_map(many, mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec(), check_vma=False)
    run = jax.jit(by_device).lower(jnp.zeros((), jnp.int32), x).compile()
    x = jax.device_put(x, run.input_shardings[0][1])
    counts = {n: jax.device_put(jnp.int32(n), run.input_shardings[0][0]) for n in (1, 8)}
    _timed(lambda: run(counts[1], x), 1)
    few = max(_timed(lambda: run(counts[8], x), 1) / 8, 1e-7)
    num_runs = int(min(max(patience / few, 4), _MAX_RUNS))
    count = jax.device_put(jnp.int32(num_runs), run.input_shardings[0][0])
    return min(_timed(lambda: run(count, x), 1) for _ in range(_ROUNDS)) / num_runs


def _timed(call: Callable[[], Any], times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        jax.block_until_ready(call())
    return time.perf_counter() - start
