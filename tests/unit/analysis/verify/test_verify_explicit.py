"""Proofs of programs on Explicit axes, where the step may name axes of the mesh, and shardings are part of types."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

import outlay

RNG = np.random.default_rng(0)
BATCHES = [{name: RNG.normal(size=(16, size)).astype(np.float32) for name, size in (("x", 16), ("y", 8))}] * 2
TENSOR = outlay.Layout([("params.up", P(None, "model")), ("params.down", P("model"))])


def init(key: Any) -> Any:
    up, down = jax.random.split(key)
    return {"up": jax.random.normal(up, (16, 32)), "down": jax.random.normal(down, (32, 8))}


def loss(params: Any, batch: Any, keys: Any) -> Any:
    hidden = jnp.tanh(batch["x"] @ params["up"])
    return jnp.square(hidden @ params["down"] - batch["y"]).mean(-1), {"hidden": hidden.mean(-1)}


def edited(params: Any, batch: Any, keys: Any) -> Any:
    """The same with the sharding that tensor parallelism leaves open on Explicit axes."""
    hidden = jnp.tanh(batch["x"] @ params["up"])
    out = jnp.matmul(hidden, params["down"], out_sharding=P("data", None))
    return jnp.square(out - batch["y"]).mean(-1), {"hidden": hidden.mean(-1)}


def program(loss: Any, layout: outlay.Layout, accumulate: int = 1, **axes: int) -> outlay.Program:
    optimizer = optax.adam(1e-2)
    return outlay.program(
        outlay.train_step(loss, optimizer, accumulate=accumulate),
        outlay.init_state(init, optimizer),
        BATCHES[0],
        layout=layout + outlay.data_parallel(),
        mesh=outlay.mesh(**axes, explicit=True),
    )


@pytest.mark.some_cases(1)
@pytest.mark.compiles
@pytest.mark.parametrize(
    ("loss", "layout", "axes", "accumulate"),
    [
        (loss, outlay.Layout(), {"data": 8}, 1),
        (loss, outlay.zero2(min_size=8), {"data": 8}, 2),
        (edited, TENSOR, {"data": 4, "model": 2}, 2),
    ],
    ids=["data parallel", "zero2", "tensor parallel, with axes named in the model"],
)
def test_a_program_on_explicit_axes_is_proven_with_its_gradients(
    loss: Any, layout: outlay.Layout, axes: dict[str, int], accumulate: int
) -> None:
    verification = outlay.verify(program(loss, layout, accumulate, **axes), batches=BATCHES, steps=2)
    verification.raise_if_different()
    assert {check.kind for check in verification.checks} == {"gradient", "output", "state"}


def test_a_fault_on_explicit_axes_is_named() -> None:
    def summed_twice(state: Any, batch: Any) -> Any:
        def local(x: jax.Array) -> jax.Array:
            return jax.lax.psum(x.mean(), "data")  # a mean was meant

        mean = jax.shard_map(local, in_specs=P("data"), out_specs=P())(jax.reshard(batch, P("data")))
        return state - mean, {"mean": mean}

    batch = np.ones((16, 3), np.float32)
    built = outlay.program(
        summed_twice,
        lambda key: jnp.ones(8),
        batch,
        layout=outlay.data_parallel(),
        mesh=outlay.mesh(data=8, explicit=True),
    )
    verification = outlay.verify(built, batches=[batch], steps=1)
    assert not verification.ok
    assert verification.wrong[0].path == "outputs.mean"
    assert verification.wrong[0].ratio == pytest.approx(8)


def test_mode_manual_is_no_reference_on_explicit_axes() -> None:
    with pytest.raises(outlay.errors.ProgramError, match="mode manual takes a mesh with automatic axes"):
        outlay.verify(program(loss, outlay.Layout(), data=8), against="manual", batches=BATCHES, steps=1)
