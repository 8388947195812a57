"""A model with experts is trained alike whatever the mesh, also where tokens are dropped, and tokens change devices."""

from __future__ import annotations

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

import outlay
from outlay.core.error_types import LayoutError

pytestmark = [pytest.mark.newest, pytest.mark.compiles]

NUM_LAYERS, NUM_EXPERTS, WIDTH, HIDDEN, VOCABULARY = 2, 8, 8, 12, 11
BATCH = np.random.default_rng(0).integers(0, VOCABULARY, (16, 6))
OPTIMIZER = optax.sgd(0.1, momentum=0.9)


def init_params(key: jax.Array) -> Any:
    keys = jax.random.split(key, 4)

    def draw(key: jax.Array, *shape: int) -> jax.Array:
        return jax.random.normal(key, shape) / shape[-2] ** 0.5

    layers = {
        "router": 3 * draw(keys[0], NUM_LAYERS, WIDTH, NUM_EXPERTS),
        "experts": {
            "up": draw(keys[1], NUM_LAYERS, NUM_EXPERTS, WIDTH, HIDDEN),
            "down": draw(keys[2], NUM_LAYERS, NUM_EXPERTS, HIDDEN, WIDTH),
        },
    }
    return {"table": draw(keys[3], VOCABULARY, WIDTH), "layers": layers}


def loss(factor: float | None, params: Any, batch: Any, keys: Any) -> Any:
    def expert(params: Any, tokens: jax.Array) -> jax.Array:
        return jax.nn.silu(tokens @ params["up"]) @ params["down"]

    def layer(x: jax.Array, params: Any) -> Any:
        mixed, routing = outlay.experts(expert, params["experts"], x, x @ params["router"], capacity_factor=factor)
        return x + mixed, routing

    x, routing = jax.lax.scan(layer, params["table"][batch], params["layers"])
    losses = optax.softmax_cross_entropy_with_integer_labels(x @ params["table"].T, batch).mean(axis=-1)
    metrics = jax.tree.map(lambda each: each.mean(axis=0), routing.metrics())
    return losses + 0.01 * metrics["balance_loss"] + 0.001 * metrics["z_loss"], metrics


APART = outlay.layout.expert_parallel("expert", dim=1)
TENSOR = outlay.Layout(
    [
        ("params.layers.experts.up", P(None, None, None, "model")),
        ("params.layers.experts.down", P(None, None, "model")),
    ]
)
STAGES = outlay.Layout([("params.layers.**", outlay.layout.pipeline("stage", microbatches=2))])
FSDP = outlay.fsdp("data", min_size=1, otherwise="replicate", pattern="params.**")
WAYS = {
    "experts": ("data=2,expert=4", APART, "auto", 1, 1.0),
    "experts by hand": ("data=2,expert=4", APART, "manual", 1, 100.0),
    "experts, fsdp, tensor, accumulated": ("data=2,expert=2,model=2", TENSOR + APART + FSDP, "auto", 2, 1.0),
    "experts, stages": ("stage=2,data=2,expert=2", STAGES + APART, "auto", 1, 1.0),
    "experts, stages, tensor": ("stage=2,data=1,expert=2,model=2", STAGES + TENSOR + APART, "auto", 1, 1.0),
    "no limit, fsdp": ("data=8", FSDP + outlay.data_parallel(), "auto", 1, None),
    "no limit, accumulated": ("data=4,model=2", TENSOR + outlay.data_parallel(), "auto", 2, None),
    "no limit, stages": ("stage=2,data=4", STAGES + outlay.data_parallel(), "auto", 1, None),
    "no limit by hand": ("data=8", outlay.data_parallel(), "manual", 1, None),
}
"""Mesh, layout, mode, parts of the batch, and capacity."""


@functools.cache
def program(way: str) -> Any:
    mesh, layout, mode, accumulate, factor = WAYS[way]
    step = outlay.train_step(functools.partial(loss, factor), OPTIMIZER, accumulate=accumulate)
    init = outlay.init_state(init_params, OPTIMIZER)
    return outlay.program(step, init, BATCH, layout=layout, mesh=outlay.mesh(mesh), mode=mode)


@functools.cache
def trained_alone(factor: float | None) -> Any:
    step = jax.jit(outlay.train_step(functools.partial(loss, factor), OPTIMIZER))
    state = jax.jit(outlay.init_state(init_params, OPTIMIZER))(jax.random.key(0))
    for _ in range(2):
        state, metrics = step(state, BATCH)
    return jax.device_get((state.params, state.opt_state, metrics))


@pytest.mark.some_cases(2, newest=0)
@pytest.mark.parametrize("way", WAYS)
def test_it_is_trained_as_on_one_device(way: str) -> None:
    one = program(way)
    state = one.init(jax.random.key(0))
    for _ in range(2):
        state, metrics = one(state, BATCH)

    params, opt_state, expected = trained_alone(WAYS[way][-1])
    assert (expected["dropped_share"] > 0.1) == (WAYS[way][-1] == 1.0)
    got = jax.device_get((state.params, state.opt_state, metrics))
    for left, right in zip(jax.tree.leaves(got), jax.tree.leaves((params, opt_state, expected)), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-6, atol=1e-6)


def test_tokens_change_devices_by_all_to_all_and_experts_stay() -> None:
    """Forward and backward, to the experts and from them; nothing that has a token, or an expert, is gathered."""
    text = program("experts").compiled.as_text()
    assert len(re.findall(r" all-to-all(?:-start)?\(", text)) == 4
    gathered = re.findall(r"= (\S+) all-gather(?:-start)?\(", text)
    assert not [shape for shape in gathered if re.search(r"\bf32\[(\d+,){2}", shape)], gathered


@pytest.mark.any_jax
def test_experts_that_do_not_divide_the_axis_are_named() -> None:
    params = jax.eval_shape(init_params, jax.random.key(0))
    with pytest.raises(
        LayoutError, match=r"params.layers.experts.up\n    dim 1 of .* has size 8, .* by expert=3"
    ) as error:
        APART.plan({"params": params}, outlay.mesh("data=2,expert=3", devices=jax.devices()[:6]), batch=BATCH[:12])
    assert "params.layers.experts.down" in str(error.value)
    with pytest.raises(LayoutError, match="that mesh data=8"):
        APART.plan({"params": params}, outlay.mesh("data=8"), batch=BATCH)
    with pytest.raises(LayoutError, match="splits samples over two axes, and both are 'data'"):
        outlay.layout.expert_parallel("data")
    with pytest.raises(LayoutError, match="takes the names of two axes of the mesh, and axis is 4"):
        outlay.layout.expert_parallel(4)  # pyright: ignore[reportArgumentType]


@pytest.mark.any_jax
def test_one_group_of_tokens_is_told_where_groups_come_from() -> None:
    def flat(params: Any, batch: Any, keys: Any) -> Any:
        tokens = batch.reshape(-1, 4)
        y, _ = outlay.experts(lambda w, x: x @ w, params["experts"], tokens, tokens, capacity_factor=1.0)
        return y.reshape(batch.shape).mean((1, 2)), {}

    optimizer = optax.sgd(0.1)
    init = outlay.init_state(lambda key: {"experts": jnp.ones((4, 4, 4))}, optimizer)
    with pytest.raises(LayoutError, match=r"expert_tokens.sent(?s:.*)all samples at once(?s:.*)groups=8 or a multiple"):
        outlay.program(
            outlay.train_step(flat, optimizer),
            init,
            np.ones((16, 6, 4), np.float32),
            layout=outlay.layout.expert_parallel("expert"),
            mesh=outlay.mesh("data=2,expert=4"),
        )
