"""Steps with the mistakes of parallel programs in them, each for the pieces of a mesh with the axis `data`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import outlay

NUM = 64
RNG = np.random.default_rng(0)
BATCHES = [
    {"x": RNG.normal(size=(NUM, 6)).astype(np.float32), "y": RNG.normal(size=NUM).astype(np.float32)} for _ in range(3)
]


WEIGHTS = RNG.normal(size=6).astype(np.float32)


def init(key: Any) -> Any:
    return {"key": key, "w": jnp.asarray(WEIGHTS)}


def descend(state: Any, grad: Any, loss: Any) -> tuple[Any, Any]:
    return {**state, "w": state["w"] - 0.1 * grad}, {"loss": loss}


def errors(w: Any, batch: Any) -> Any:
    return (batch["x"] @ w - batch["y"]) ** 2


def right(state: Any, batch: Any) -> Any:
    def loss_of(w: Any) -> Any:
        return jax.lax.pmean(errors(w, batch).mean(), "data")

    loss, grad = jax.value_and_grad(loss_of)(state["w"])
    return descend(state, grad, loss)


def forgotten_pmean(state: Any, batch: Any) -> Any:
    loss, grad = jax.value_and_grad(lambda w: errors(w, batch).mean())(state["w"])
    return descend(state, grad, jax.lax.pmean(loss, "data"))


def double_sum(state: Any, batch: Any) -> Any:
    """JAX has summed the gradient of a shared parameter; this sums it again."""
    loss, grad = jax.value_and_grad(lambda w: errors(w, batch).mean())(state["w"])
    again = jax.lax.psum(jax.lax.pcast(grad, "data", to="varying"), "data")
    return descend(state, again, jax.lax.pmean(loss, "data"))


def dropped_samples(state: Any, batch: Any) -> Any:
    """Accumulation in microbatches of three that leaves out what remains: two samples on each of eight devices."""
    counted = jax.tree.map(lambda x: x[: len(x) // 3 * 3], batch)

    def loss_of(w: Any) -> Any:
        # Microbatches one after the other would take longer to compile, and come to the same sum.
        return jax.lax.psum(errors(w, counted).sum(), "data") / NUM

    loss, grad = jax.value_and_grad(loss_of)(state["w"])
    return descend(state, grad, loss)


def wrong_out_spec(state: Any, batch: Any) -> Any:
    """For mode auto: what differs from device to device is declared to be the same, and the check is switched off."""
    local = jax.shard_map(
        lambda w, batch: jax.grad(lambda w: errors(w, batch).mean())(w),
        in_specs=(P(), P("data")),
        out_specs=P(),
        check_vma=False,
    )
    return descend(state, local(state["w"], batch), errors(state["w"], batch).mean())


def program(step: Any, *, mode: Any = "manual", **axes: int) -> outlay.Program:
    mesh = outlay.mesh(**(axes or {"data": 8}))
    return outlay.program(step, init, BATCHES[0], layout=outlay.data_parallel(), mesh=mesh, mode=mode)
