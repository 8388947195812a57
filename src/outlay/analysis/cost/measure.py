"""Timing what all devices do at once, again and again: products, copies, collectives, nothing.

Each is the best of some rounds, and `patience` is how many seconds a round takes.
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
"""The mesh axis along which devices exchange; the other one, `groups`, says which of the groups they are in."""


def exchanges(size: int) -> dict[str, Exchange]:
    """Each kind of collective on one device's payload, for groups of so many devices."""
    around = [(source, (source + 1) % size) for source in range(size)]
    return {
        "all-reduce": partial(jax.lax.psum, axis_name=GROUP),
        "all-gather": lambda x: jax.lax.all_gather(x[: len(x) // size], GROUP, tiled=True),
        "reduce-scatter": partial(jax.lax.psum_scatter, axis_name=GROUP, tiled=True),
        "all-to-all": partial(jax.lax.all_to_all, axis_name=GROUP, split_axis=0, concat_axis=0, tiled=True),
        "collective-permute": partial(jax.lax.ppermute, axis_name=GROUP, perm=around),
    }


def exchange_seconds(exchange: Exchange, num_bytes: int, mesh: Mesh, patience: float) -> float:
    """Seconds of a collective of so many bytes a device, all groups of the mesh at once."""

    def body(x: jax.Array, last: jax.Array) -> tuple[jax.Array, jax.Array]:
        # Each run waits for the one before, and none can be left out: a number of its result goes into the next.
        x = x.at[0].set(last)
        return x, exchange(x)[0]

    return _seconds(body, jnp.zeros(num_bytes // 4, jnp.float32), mesh, patience)


def copy_seconds(num_bytes: int, mesh: Mesh, patience: float) -> float:
    """Seconds of reading so many bytes on every device, and writing as many."""
    return _seconds(lambda x, last: (x + last, last + 1), jnp.zeros(num_bytes // 4, jnp.float32), mesh, patience)


def across_rows_seconds(num_bytes: int, width: int, mesh: Mesh, patience: float) -> float:
    """Seconds of adding transposed (width, width) float32 matrices of so many bytes to others, on every device."""
    other = jnp.ones((max(num_bytes // (4 * width**2), 1), width, width), jnp.float32)

    def body(x: jax.Array, last: jax.Array) -> tuple[jax.Array, jax.Array]:
        return x + (other + last).swapaxes(1, 2), last + 1

    return _seconds(body, other, mesh, patience)


def product_seconds(rows: int, width: int, dtype: str, mesh: Mesh, patience: float) -> float:
    """Seconds of a product of (rows, width) and (width, width) on every device."""
    weights = jnp.full((width, width), 1 / width, dtype)
    return _seconds(lambda x, last: (x @ weights, last), jnp.ones((rows, width), dtype), mesh, patience)


def operation_seconds(mesh: Mesh, patience: float) -> float:
    """Seconds of one more operation too small to take time: a product of 4 x 4, of many in a row."""
    num_more, few = 64, 2

    def body(x: jax.Array, last: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
        for _ in range(count):
            x = x @ x
        return x, last

    times = [_seconds(partial(body, count=count), jnp.eye(4), mesh, patience) for count in (few, few + num_more)]
    return max(times[1] - times[0], 0.0) / num_more


def step_seconds(mesh: Mesh) -> float:
    """Seconds of a call of a compiled step that does nothing, until its result is there."""
    split = jax.NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    state = jax.device_put(jnp.zeros(mesh.size), split)
    step = jax.jit(lambda x: x + 1, out_shardings=split)
    jax.block_until_ready(step(state))
    return min(_timed(lambda: step(state), 20) for _ in range(_ROUNDS)) / 20


def _seconds(body: Callable[..., tuple[jax.Array, jax.Array]], x: Any, mesh: Mesh, patience: float) -> float:
    """Seconds of one run of `body(x, number) -> (x, number)` on every device, at best of some rounds."""

    def many(num_runs: jax.Array, x: jax.Array) -> jax.Array:
        start = (x, jnp.zeros((), jnp.float32))
        x, last = jax.lax.fori_loop(0, num_runs, lambda _, carry: body(*carry), start)
        return last + x.ravel()[0].astype(jnp.float32)

    # Nothing is said of what varies over devices: the carried values differ in that from kind to kind.
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
